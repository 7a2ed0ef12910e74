"""The model of lm-evaluation-harness, against a generator; and its tasks, where it is installed."""

import importlib
import importlib.util
import json
import shutil
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
from architectures import WINDOW, random_model
from paths import CONFIGS
from test_generation import IDS

from brt.generation.generator import Generator
from brt.generation.sampling import GREEDY

INSTALLED = importlib.util.find_spec("lm_eval") is not None


class Instance(NamedTuple):
    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def harness():
    """Imports the module, with a stub as its base class where lm_eval is not installed."""
    if INSTALLED:
        yield importlib.import_module("brt.generation.harness")
        return
    stub: Any = types.ModuleType("lm_eval.api.model")
    stub.LM = type("LM", (), {})
    with pytest.MonkeyPatch.context() as patch:
        for name in ("lm_eval", "lm_eval.api"):
            patch.setitem(sys.modules, name, types.ModuleType(name))
        patch.setitem(sys.modules, "lm_eval.api.model", stub)
        yield importlib.import_module("brt.generation.harness")
        sys.modules.pop("brt.generation.harness")


@pytest.fixture(scope="module")
def lm(harness):
    model = random_model("rec_two_layers")
    return harness.BrtLM(Generator(model, IDS, WINDOW, chunk=3), batch_size=3)


def test_a_run_with_own_code_is_read_where_it_is_allowed(harness, tmp_path, monkeypatch):
    (tmp_path / "own_code.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "run"
    shutil.copytree(CONFIGS / "trained" / "recall", folder)
    (folder / "config.gin").write_text("import own_code\n" + (folder / "config.gin").read_text())
    with pytest.raises(ValueError, match="--allow_imports=own_code"):
        harness.BrtLM(str(folder))
    harness.BrtLM(str(folder), allow_imports=["own_code"])


def text(seed, length):
    ids = np.random.default_rng(seed).integers(0, 17, length)
    return "".join(map(chr, ids))


CONTEXTS = [text(n, length) for n, length in enumerate((0, 5, 3 * WINDOW + 1, 70))]


def nats_of(lm, context, continuation):
    """Nats of the continuation, after a pass over both together."""
    _, (nats_T,) = lm.generator.score(context + continuation)
    return nats_T[len(context) :]


def greedy(lm, context, length):
    writing = lm.generator.write(lm.generator.read(context), length, GREEDY).run()
    return "".join(map(chr, writing.tokens[0]))


def test_continuations_have_the_likelihood_of_one_pass(lm):
    pairs = [(c, text(10 + n, length)) for c in CONTEXTS for n, length in enumerate((1, 9, 0))]
    pairs += [(c, greedy(lm, c, 7)) for c in CONTEXTS]
    answers = lm.loglikelihood([Instance(pair) for pair in pairs])
    for (context, continuation), (likelihood, is_greedy) in zip(pairs, answers, strict=True):
        expected = -nats_of(lm, context, continuation).sum()
        assert likelihood == pytest.approx(expected, rel=1e-4, abs=1e-4)
        assert is_greedy == (continuation == greedy(lm, context, len(continuation)))
    assert all(is_greedy for _, is_greedy in answers[-len(CONTEXTS) :])


def test_whole_texts_are_scored_from_their_first_token(lm):
    texts = [*CONTEXTS, CONTEXTS[1]]
    found = lm.loglikelihood_rolling([Instance((each,)) for each in texts])
    for each, likelihood in zip(texts, found, strict=True):
        assert likelihood == pytest.approx(-nats_of(lm, "", each).sum(), rel=1e-4, abs=1e-4)


def test_texts_are_continued_up_to_their_stop_sequence(lm):
    stop = greedy(lm, CONTEXTS[3], 12)[5:7]
    settings = [{"until": [stop], "max_gen_toks": 12}, {"max_gen_toks": 4}]
    requests = [Instance((c, each)) for each in settings for c in CONTEXTS]
    found = lm.generate_until(requests)
    for (context, each), written in zip((r.args for r in requests), found, strict=True):
        expected = greedy(lm, context, each["max_gen_toks"])
        assert written == (expected.split(stop)[0] if "until" in each else expected)
    for given in ({}, {"temperature": 5.0}, {"top_k": 0}):  # a temperature of 1, and all tokens
        drawn = {"max_gen_toks": 20, "do_sample": True} | given
        assert lm.generate_until([Instance((CONTEXTS[3], drawn))]) != [greedy(lm, CONTEXTS[3], 20)]


def test_clones_of_a_request_are_sampled_apart(lm):
    drawn = {"max_gen_toks": 20, "do_sample": True, "temperature": 5.0}
    clones = lm.generate_until([Instance((CONTEXTS[3], drawn))] * (2 * lm.batch_size))
    assert len({*clones}) == len(clones)


TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{data}"}}}}
test_split: test
doc_to_text: "{{{{question}}}}"
target_delimiter: ""
{more}
"""
TASKS = {
    "brt_choice": """
output_type: multiple_choice
doc_to_choice: choices
doc_to_target: 1
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "brt_written": """
output_type: generate_until
doc_to_target: "{{answer}}"
generation_kwargs: {max_gen_toks: 3, until: ["zz"]}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
}


@pytest.mark.skipif(not INSTALLED, reason="lm_eval is not installed")
def test_local_tasks_of_the_harness_run(lm, tmp_path):
    import lm_eval
    from lm_eval.tasks import TaskManager

    questions = [context for context in CONTEXTS if context]
    answers = [greedy(lm, question, 3) for question in questions]
    rows = [
        {"question": question, "answer": answer, "choices": [text(50 + n, 3), answer]}
        for n, (question, answer) in enumerate(zip(questions, answers))
    ]
    data = tmp_path / "rows.json"
    data.write_text("\n".join(map(json.dumps, rows)))
    for name, more in TASKS.items():
        (tmp_path / f"{name}.yaml").write_text(TASK.format(name=name, data=data, more=more))
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    results = lm_eval.simple_evaluate(model=lm, tasks=[*TASKS], task_manager=manager)["results"]
    assert results["brt_choice"]["acc,none"] == 1.0
    assert results["brt_written"]["exact_match,none"] == 1.0
