"""Compares recorded tables of relative positions with brt's; see `check_recording.py`.

Counts the entries that differ; 0 is the tolerance.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from brt.models.layers.positions_t5 import t5_buckets
from brt.pretrained.encoders.deberta import distance_buckets
from brt.pretrained.encoders.t5_layers import two_sided_buckets


def errors(recording: Mapping[str, Any]) -> dict[str, float]:
    """Returns how many entries of each table differ.

    Raises:
        ValueError: a table of another kind.
    """
    found = {}
    for key, expected in recording.items():
        if not key.endswith("/bucket"):
            continue
        family, sizes, _ = key.split("/")
        buckets, longest, *sides = sizes.split("_", 2)
        if family == "deberta_v2":
            distance = recording[f"{family}/{sizes}/distance"]
            values = distance_buckets(distance, int(buckets), int(longest))
        elif family == "t5" and sides[0] in ("two_sided", "causal"):
            distance = recording[f"{family}/{sizes}/key_minus_query"]
            if sides[0] == "two_sided":
                values = two_sided_buckets(distance, int(buckets), int(longest))
            else:
                values = t5_buckets(-distance, int(buckets), int(longest))
        else:
            raise ValueError(f"{key} is a table of another kind.")
        found[f"{family}/{sizes}"] = float(np.count_nonzero(values != expected))
    return found
