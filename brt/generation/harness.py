"""A run as a model of lm-evaluation-harness (extra `eval`).

lm_eval.simple_evaluate(model=BrtLM("runs/mine"), tasks=["lambada_openai"])

A prompt is read from its first token; nothing is cut. Every context is read once, whatever its
number of continuations.
"""

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from brt.data.extras import extra_library
from brt.generation.document_memory import Memory
from brt.generation.generator import Generator
from brt.generation.sampling import GREEDY, Sampling

LM: Any = extra_library("lm_eval.api.model", "brt.generation.harness", "eval").LM
MAX_TOKENS = 256
NOTHING = np.zeros(0, np.int32)
SAMPLED = ("temperature", "top_k", "top_p")


class BrtLM(LM):  # type: ignore[misc]
    """Answers requests of the harness.

    Args:
        run: a folder, as of `load_run`, or a `Generator`.
        batch_size: contexts that are read at once.
        step: checkpoint, as of `load_run`.
        allow_imports: modules outside brt that the run's config may import.
    """

    def __init__(
        self,
        run: str | Generator,
        batch_size: int = 8,
        step: int | str | None = None,
        allow_imports: Sequence[str] = (),
    ):
        super().__init__()
        if not isinstance(run, Generator):
            run = Generator.from_folder(run, allow_imports=allow_imports, step=step)
        self.generator = run
        self.batch_size = batch_size

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Returns log p of each continuation, and whether greedy decoding writes it."""
        by_context: dict[str, list[tuple[int, np.ndarray]]] = {}
        for number, request in enumerate(requests):
            context, continuation = request.args
            tokens = self._continuation(context, continuation)
            by_context.setdefault(context, []).append((number, tokens))
        answers: list[Any] = [None] * len(requests)
        for contexts in self._batches(by_context):
            memory = self._read(contexts)
            for continuations in itertools.zip_longest(*map(by_context.__getitem__, contexts)):
                rows = [(0, NOTHING) if each is None else each for each in continuations]
                rows += [(0, NOTHING)] * (self.batch_size - len(rows))
                parts = [part for _, part in rows]
                _, nats = self.generator.score(parts, memory)
                greedy = self._written_greedily(memory, parts)
                for row, each in enumerate(continuations):
                    if each is not None:
                        answers[each[0]] = (-float(nats[row].sum()), greedy[row])
        return answers

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        texts = [request.args[0] for request in requests]
        log_p: dict[str, float] = {}
        for batch in self._batches(dict.fromkeys(texts)):
            _, nats = self.generator.score(self._padded(batch))
            log_p |= {text: -float(nats_T.sum()) for text, nats_T in zip(batch, nats)}
        return [log_p[text] for text in texts]

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        by_settings: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            settings = json.dumps(request.args[1], sort_keys=True)
            by_settings.setdefault(settings, []).append(number)
        answers = [""] * len(requests)
        for settings, numbers in by_settings.items():
            options = json.loads(settings)
            until = options.get("until") or []
            until = [until] if isinstance(until, str) else until
            sampling = GREEDY
            if options.get("do_sample"):
                given = {name: options.get(name) for name in SAMPLED}
                given["top_k"] = given["top_k"] or None  # 0: all tokens, as in transformers
                sampling = Sampling(**{n: x for n, x in given.items() if x is not None})
            for batch in self._batches(numbers):
                memory = self._read([requests[number].args[0] for number in batch])
                length = options.get("max_gen_toks", MAX_TOKENS)
                # A clone of a request is sampled with a seed of its own.
                seeds = [*batch, *[0] * (self.batch_size - len(batch))]
                writing = self.generator.write(memory, length, sampling, seeds, stop=until).run()
                for number, text in zip(batch, writing.texts):
                    answers[number] = text
        return answers

    def _continuation(self, context: str, continuation: str) -> np.ndarray:
        before = self.generator.encode(context)
        whole = self.generator.encode(context + continuation)
        if np.array_equal(whole[: len(before)], before):
            return whole[len(before) :]
        return self.generator.encode(continuation)

    def _batches(self, items: Iterable[Any]) -> Iterable[list[Any]]:
        items = list(items)
        return [items[i : i + self.batch_size] for i in range(0, len(items), self.batch_size)]

    def _padded(self, texts: list[str]) -> list[str]:
        return texts + [""] * (self.batch_size - len(texts))

    def _read(self, contexts: list[str]) -> Memory:
        return self.generator.read(self._padded(contexts))

    def _written_greedily(self, memory: Memory, tokens: list[np.ndarray]) -> list[bool]:
        continuations = [each.tolist() for each in tokens]
        writing = self.generator.write(memory, max(map(len, continuations)), GREEDY)
        for _ in writing:
            pairs = zip(writing.tokens, continuations)
            if not any(right and new[: len(right)] == right[: len(new)] for new, right in pairs):
                break
        return [new[: len(right)] == right for new, right in zip(writing.tokens, continuations)]
