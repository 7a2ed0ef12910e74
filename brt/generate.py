r"""Continues a prompt, a book or a saved memory with a trained model, whose state is kept.

    python -m brt.generate --workdir=runs/quickstart --prompt="def main():"
    python -m brt.generate --workdir=runs/books --prompt_file=book.txt --max_tokens=0 \
        --save_memory=book.memory
    python -m brt.generate --workdir=runs/books --load_memory=book.memory --samples=3
    python -m brt.generate --workdir=runs/books --load_memory=book.memory --score=chapter.txt

Text and scores go to standard output, everything else to standard error.
"""

import json
import math
import os
import sys
import time
from collections.abc import Sequence

import numpy as np
from absl import flags

from brt import command_line
from brt.data.vocabularies.base import expanded
from brt.generation.document_memory import Memory, take_rows
from brt.generation.generator import Generator
from brt.generation.sampling import Sampling, checked
from brt.host.progress import say
from brt.host.terminal import plain
from brt.model_folder import load_run
from brt.storage.file_parts import FileBytes
from brt.storage.paths import file_size, is_remote
from brt.storage.regular_files import check_replaceable, read_bytes

FLAGS = flags.FLAGS
command_line.define_step()
flags.DEFINE_string("model", None, "A folder of brt.export, or hf://OWNER/NAME, in place of a run.")
flags.DEFINE_multi_string("prompt", [], "Text to go on with; repeated: one document each.")
flags.DEFINE_multi_string("prompt_file", [], "A file to go on with, of any length; may repeat.")
flags.DEFINE_integer("max_tokens", 256, "Tokens to write; 0 only reads.")
flags.DEFINE_float("temperature", 1.0, "Divides the logits; 0 takes the most likely token.")
flags.DEFINE_integer("top_k", None, "Draw among the k most likely tokens.")
flags.DEFINE_float("top_p", None, "Draw among the fewest tokens of this probability together.")
flags.DEFINE_float("repetition_penalty", None, "Above 1: avoid tokens of the last window.")
flags.DEFINE_integer("seed", 0, "Decides what is drawn; further rows count on from it.")
flags.DEFINE_integer("samples", 1, "Write so many continuations of each document.")
flags.DEFINE_multi_string("stop", [], "Stop before this text; may be repeated.")
flags.DEFINE_string("score", None, "Read this file next and say what it costs; write nothing.")
flags.DEFINE_string("save_text", None, "Add prompts and texts to this file, as JSON lines.")
flags.DEFINE_string("save_memory", None, "Write the document's memory here, at the end.")
flags.DEFINE_string("load_memory", None, "Go on from this memory, before any prompt.")


SHOWN = 2000
"""Last bytes of a prompt that --save_text keeps."""
LONG = 2**20
"""Least bytes of a text that is read in parts, if its vocabulary allows."""


def main() -> None:
    if bool(FLAGS.workdir) == bool(FLAGS.model):
        raise ValueError(
            "Name the model that is to write: --workdir=RUN, or --model=FOLDER of brt.export."
        )
    if FLAGS.gin_file:
        raise ValueError("--gin_file is not read: the run folder has the config of its model.")
    if FLAGS.samples < 1 or FLAGS.max_tokens < 0:
        raise ValueError(
            f"--samples = {FLAGS.samples} must be at least 1, and --max_tokens = "
            f"{FLAGS.max_tokens} at least 0."
        )
    texts = [("--prompt", os.fsencode(text)) for text in FLAGS.prompt]
    texts += [(path, _content(path)) for path in FLAGS.prompt_file]
    scored = _content(FLAGS.score)[:] if FLAGS.score else None
    sampling = Sampling(FLAGS.temperature, FLAGS.top_k, FLAGS.top_p, FLAGS.repetition_penalty)
    if FLAGS.save_memory:
        _check_writable(FLAGS.save_memory, max(len(texts), 1) * FLAGS.samples)

    source = FLAGS.model or FLAGS.workdir
    experiment, params, step = load_run(source, FLAGS.gin_bindings, FLAGS.allow_imports, FLAGS.step)
    generator = Generator.of_experiment(experiment, params, source)
    say(f"{source} at step {step:,}" if step or FLAGS.workdir else source)
    # Checks before anything long is read.
    checked(sampling, generator.vocabulary.size)
    documents: list[tuple[str, bytes | FileBytes]] = [*texts] or [("--prompt", b"")]
    by_parts = generator.vocabulary.cuts_after is not None
    by_parts &= any(len(text) > LONG for _, text in documents)
    if not by_parts:
        tokens = [generator.encode(text[:], name) for name, text in documents]
    for name, text in texts:
        if not text:
            say(f"{name} is empty: nothing of it is read")
    if scored is not None and not len(scored_T := generator.encode(scored, FLAGS.score)):
        raise ValueError(f"{FLAGS.score} has no token to score.")
    is_written = scored is None and FLAGS.max_tokens > 0
    if is_written and FLAGS.save_text:
        open(expanded(FLAGS.save_text), "a").close()

    memory = None
    if FLAGS.load_memory:
        memory = generator.load(FLAGS.load_memory)
        say(f"{FLAGS.load_memory} has read {memory.position_B[0]:,} tokens")
        memory = take_rows(memory, [0] * len(documents))
    if by_parts:
        memory = generator.read_files(documents, memory, "reading, tokens")
    else:
        memory = generator.read(tokens, memory, "reading, tokens")
    if scored is not None:
        memory = score(generator, memory, scored_T, len(scored))
    if FLAGS.save_memory:  # now, so that no later error loses it
        generator.save(FLAGS.save_memory, memory)
    if is_written:
        rows = [row for row in range(len(documents)) for _ in range(FLAGS.samples)]
        memory = write(
            generator, take_rows(memory, rows), sampling, [documents[n][1] for n in rows]
        )
        if FLAGS.save_memory:
            generator.save(FLAGS.save_memory, memory)
    if FLAGS.save_memory:
        say(
            f"{FLAGS.save_memory} has read {memory.position_B[0]:,} tokens and takes "
            f"{file_size(expanded(FLAGS.save_memory)):,} bytes, however many they are"
        )


def write(
    generator: Generator, memory: Memory, sampling: Sampling, prompts: Sequence[bytes | FileBytes]
) -> Memory:
    """Continues documents and prints them: a single one while it is written, several at the end.

    prompts: beginning of each document, for a terminal and --save_text.
    """
    rows = len(memory.position_B)
    if rows == 1 and sys.stdout.isatty():
        _draw("\033[2m")  # faint
        print(_end(prompts[0]), end="", flush=True)
        _draw("\033[22m")
    else:
        for prompt in dict.fromkeys(map(_end, prompts)):
            if prompt:
                print(f"after the prompt:\n{prompt}", file=sys.stderr, flush=True)
    begun = time.monotonic()
    writing = generator.write(memory, FLAGS.max_tokens, sampling, FLAGS.seed, FLAGS.stop)
    for pieces in writing:
        if rows == 1:
            print(pieces[0], end="", flush=True)
    seconds = time.monotonic() - begun
    if rows == 1:
        print()
    else:
        for row, text in enumerate(writing.texts):
            print(f"--- {row}\n{text}")
    if FLAGS.save_text:
        with open(expanded(FLAGS.save_text), "a", encoding="utf-8") as file:
            for prompt, text in zip(prompts, writing.texts, strict=True):
                file.write(json.dumps({"prompt": _end(prompt), "text": text}) + "\n")
    count = sum(map(len, writing.tokens))
    say(f"{count:,} token{'s' * (count != 1)} in {seconds:.1f} s")
    return writing.memory


def _draw(code):
    print(code, end="", file=plain(sys.stdout), flush=True)


def _end(prompt):
    return prompt[-SHOWN:].decode("utf-8", "replace")


def score(generator: Generator, memory: Memory, tokens: np.ndarray, size: int) -> Memory:
    """Reads tokens of a text of `size` bytes; prints their number, bits per token and per byte."""
    texts = [tokens] * len(memory.position_B)
    memory, nats = generator.score(texts, memory, "scoring, tokens")
    for nats_T in nats:
        bits = nats_T.sum() / math.log(2)
        print(
            f"tokens {len(nats_T):,}  bits per token {bits / len(nats_T):.6f}  "
            f"bits per byte {bits / size:.6f}"
        )
    return memory


def _content(path):
    path = expanded(path)
    if is_remote(path):
        return read_bytes(path)
    data = FileBytes(path, "Run the same command again.")
    return data if len(data) > LONG else data[:]


def _check_writable(path, rows):
    if rows > 1:
        raise ValueError(
            f"--save_memory keeps one document, and {rows} are asked for: give one prompt, and "
            "--samples=1."
        )
    if is_remote(path):
        return
    folder = os.path.dirname(os.path.abspath(expanded(path)))
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"--save_memory={path}: there is no folder {folder}.")
    check_replaceable(expanded(path))
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"--save_memory={path} cannot be written: name a file elsewhere.")


if __name__ == "__main__":
    command_line.run(main)
