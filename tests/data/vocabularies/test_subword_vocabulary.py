"""SubwordTextEncoder through TensorFlow Datasets; what training asks needs no TensorFlow."""

import pytest
from apart import python

from brt.data.vocabularies.subwords import SubwordVocabulary

FILE = "### SubwordTextEncoder\n### Metadata: {}\n'whale'\n'the_'\n's'\n'\x0c\u2028'\n"


@pytest.fixture
def vocabulary(tmp_path):
    (tmp_path / "tiny.subwords").write_text(FILE)
    return SubwordVocabulary(str(tmp_path / "tiny.subwords"))


def test_size_and_fingerprint_are_read_without_tensorflow(vocabulary):
    code = (
        "import sys; from brt.data.vocabularies.subwords import SubwordVocabulary as V; "
        f"v = V({vocabulary.file!r}); print(v.size, v.fingerprint); "
        "assert not {'tensorflow', 'tensorflow_datasets'} & sys.modules.keys()"
    )
    assert python(code).split() == ["261", vocabulary.fingerprint]


@pytest.mark.filterwarnings("ignore")  # TensorFlow's own, while it is imported
def test_any_text_comes_back(vocabulary):
    pytest.importorskip("tensorflow_datasets", reason='needs pip install -e ".[data]"')
    text = "the whales  swam\t\n\né€_\\"
    ids = vocabulary.encode(text.encode(), "any")
    assert vocabulary.decode(ids) == text
    assert ids.min() > 0 and ids.max() < vocabulary.size == vocabulary._encoder.vocab_size
    assert ids[:3].tolist() == [2, 1, 3]
