"""What makes no sample is refused; other promises of the stream are in laws/test_stream_laws.py."""

import pytest
from stores import W

from brt.data.streams.samples import SamplePass, SampleStream

K = 3
LENGTHS = [K * W + 1] * 11


def test_segments_that_make_no_sample_are_refused(store_of):
    store = store_of(LENGTHS)
    for sizes, error in (
        ((W, 2), "bind Trainer.segment_length = 6"),
        ((3, 5), "segments_per_step to a divisor of 12"),
        ((2 * W, 2), "bind Trainer.segment_length = 6"),
    ):
        with pytest.raises(ValueError, match=f"{error}.*padded_length"):
            SampleStream(store, 4, *sizes)
    with pytest.raises(ValueError, match=r"segment_length = 8 .*12"):
        SamplePass(store, 4, 2 * W)
