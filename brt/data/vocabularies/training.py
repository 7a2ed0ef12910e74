"""Makes a vocabulary's file from a source (`brt.prepare --train_vocabulary`); deterministic."""

import abc
import io
import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

import numpy as np

from brt.bindings.errors import building
from brt.checks import Count, Name, OneOf, Seed, configurable
from brt.data.corpus import Corpus
from brt.data.sources.base import Document, Source
from brt.data.vocabularies.base import SentencePieceVocabulary, Vocabulary, cut, utf8_text
from brt.data.vocabularies.characters import CharacterVocabulary, symbol_list
from brt.data.vocabularies.report import text_documents
from brt.data.vocabularies.subwords import SUFFIX, SubwordVocabulary, encoder_class
from brt.data.vocabularies.words import WordVocabulary
from brt.host.progress import reported, say
from brt.storage.paths import as_path
from brt.storage.regular_files import read_bytes
from brt.storage.replaced_files import replace_file

Made = TypeVar("Made", bound=Vocabulary)
PIECE = 2**24
"""Bytes of a document that are sampled at once: it may be larger than memory."""

PG19_OPTIONS: dict[str, Any] = {
    "model_type": "bpe",
    "character_coverage": 0.9995,
    "normalization_rule_name": "nmt_nfkc",
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": True,
    "split_by_whitespace": True,
    "split_by_unicode_script": True,
    "split_by_number": True,
    "split_digits": True,
    "allow_whitespace_only_pieces": True,
    "byte_fallback": False,
    "max_sentence_length": 4192,
    "unk_id": 0,
    "bos_id": -1,
    "eos_id": -1,
    "pad_id": -1,
    "num_threads": 16,  # saved in the model, so it must not depend on the machine
}
"""Settings of the models that google-research/meliad published for PG19."""


class VocabularyTraining(abc.ABC, Generic[Made]):
    """The training of one kind of vocabulary, on some `splits` of a source."""

    splits: tuple[Name, ...]

    @abc.abstractmethod
    def make(self, vocabulary: Made, documents: Iterable[Document]) -> bytes: ...


@configurable
@dataclass(eq=False)
class SentencePieceTraining(VocabularyTraining[SentencePieceVocabulary]):
    """Trains a SentencePiece model on a uniform sample of lines, with the published PG19 settings.

    Args:
        size: number of pieces; 512 to 128,000 in Table 5 of the Block-Recurrent paper.
        seed, max_lines: of the sample.
        keep_whitespace: whether tabs and line breaks are pieces, and not spaces.
        options: of the library's trainer, which replace those of `PG19_OPTIONS`.
    """

    size: Count
    seed: Seed = 0
    max_lines: Count = 2_000_000
    keep_whitespace: bool = True
    options: dict | None = None
    splits: tuple[Name, ...] = ("train",)

    def __post_init__(self) -> None:
        self.trainer_options = {**PG19_OPTIONS, **(self.options or {})}
        if self.keep_whitespace:
            symbols = self.trainer_options.get("user_defined_symbols", ())
            symbols = symbols.split(",") if isinstance(symbols, str) else symbols
            self.trainer_options["user_defined_symbols"] = [*symbols, "\n", "\t"]

    def make(self, vocabulary: SentencePieceVocabulary, documents: Iterable[Document]) -> bytes:
        from sentencepiece import SentencePieceTrainer

        longest = self.trainer_options["max_sentence_length"]
        model = io.BytesIO()
        lines = sample_lines(documents, self.max_lines, self.seed, longest)
        if not lines:
            raise ValueError(
                f"No line of the source has 1 to {longest} bytes: bind SentencePieceTraining."
                "options = {'max_sentence_length': ...} to more."
            )
        say(f"training {self.size:,} pieces on {len(lines):,} lines, which may take long")
        try:
            SentencePieceTrainer.train(
                sentence_iterator=iter(lines),
                model_writer=model,
                vocab_size=self.size,
                input_sentence_size=0,
                shuffle_input_sentence=False,
                minloglevel=2,
                **self.trainer_options,
            )
        except (RuntimeError, OSError) as error:
            raise ValueError(
                f"SentencePiece cannot train {self.size} pieces on {len(lines)} lines "
                f"({str(error).strip()}): change SentencePieceTraining.size or options, or give "
                "more text."
            ) from None
        return model.getvalue()


@configurable
@dataclass(eq=False)
class WordCounting(VocabularyTraining[WordVocabulary]):
    """Lists words by decreasing frequency, then by code points.

    Omitted words count as the unknown word; special words are never omitted.

    Args:
        max_size: of the list with special words; None for no limit.
    """

    min_count: Count = 1
    max_size: Count | None = None
    splits: tuple[Name, ...] = ("train",)

    def make(self, vocabulary: WordVocabulary, documents: Iterable[Document]) -> bytes:
        counts: Counter[str] = Counter()
        for document in documents:
            counts.update(vocabulary.words(document.data[:], document.title))
        special = vocabulary.special_words()
        room = None if self.max_size is None else self.max_size - len(special)
        if room is not None and room < 1:
            raise ValueError(
                f"WordCounting.max_size = {self.max_size} leaves no room for words beside "
                f"{special}: bind it to more."
            )

        def order(item):
            return -item[1], item[0]

        usual = ((w, n) for w, n in counts.items() if n >= self.min_count and w not in special)
        listed = dict(sorted(usual, key=order)[:room])
        left_out = len(counts.keys() - listed.keys() - set(special))
        listed |= {word: counts[word] for word in special}
        if vocabulary.unknown is not None:
            listed[vocabulary.unknown] += counts.total() - sum(listed.values())
        elif left_out:
            raise ValueError(
                f"{left_out} words would be left out: bind WordVocabulary.unknown to a word that "
                "stands for them, or WordCounting.min_count = 1 and WordCounting.max_size = None."
            )
        lines = (f"{word} {count}\n" for word, count in sorted(listed.items(), key=order))
        return "".join(lines).encode()


@configurable
@dataclass(eq=False)
class SymbolCounting(VocabularyTraining[CharacterVocabulary]):
    """Lists bytes or characters by decreasing frequency.

    Args:
        unknown: whether there is an id for all other symbols; otherwise they are refused.
    """

    unit: Annotated[str, OneOf(("byte", "character"))] = "byte"
    unknown: bool = False
    splits: tuple[Name, ...] = ("train", "validation", "test")

    def make(self, vocabulary: CharacterVocabulary, documents: Iterable[Document]) -> bytes:
        return symbol_list(documents, self.unit, self.unknown)


@configurable
@dataclass(eq=False)
class SubwordTraining(VocabularyTraining[SubwordVocabulary]):
    """Builds a SubwordTextEncoder, which is slow; needs TensorFlow Datasets.

    Args:
        size: approximate number of ids.
    """

    size: Count
    max_characters: Count | None = 10_000_000
    splits: tuple[Name, ...] = ("train",)

    def make(self, vocabulary: SubwordVocabulary, documents: Iterable[Document]) -> bytes:
        texts = (utf8_text(document.data[:], document.title) for document in documents)
        encoder = encoder_class().build_from_corpus(
            texts, target_vocab_size=self.size, max_corpus_chars=self.max_characters
        )
        with tempfile.TemporaryDirectory() as folder:
            encoder.save_to_file(os.path.join(folder, "made"))
            return read_bytes(os.path.join(folder, "made" + SUFFIX))


TRAININGS: dict[type[Vocabulary], Callable[..., VocabularyTraining]] = {
    SentencePieceVocabulary: SentencePieceTraining,
    WordVocabulary: WordCounting,
    CharacterVocabulary: SymbolCounting,
    SubwordVocabulary: SubwordTraining,
}


def bound_training() -> VocabularyTraining:
    with building():
        vocabulary = Corpus().vocabulary  # type: ignore[call-arg]  # bound by gin
        if type(vocabulary) not in TRAININGS:
            raise ValueError(
                f"{vocabulary.name!r} is not made from text: bind Corpus.vocabulary to the file to "
                'make, such as "vocabularies/8k.model" or "words:vocabularies/words.txt".'
            )
        return TRAININGS[type(vocabulary)]()


def train_vocabulary(vocabulary: Made, training: VocabularyTraining[Made], source: Source) -> str:
    path = vocabulary.path
    if path is None:
        raise ValueError(f"{vocabulary.name!r} has no file: bind Corpus.vocabulary to one to make.")
    file = as_path(path)
    if file.exists():
        raise FileExistsError(
            f"{path} exists, and stores may have been made with it: delete it, or bind "
            "Corpus.vocabulary to another file."
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    data = training.make(vocabulary, _documents(source, training.splits, path))
    replace_file(file.parent, file.name, data)
    return path


def sample_lines(documents: Iterable[Document], count: int, seed: int, longest: int) -> list[str]:
    """Returns a uniform sample of at most `count` lines of 1 to `longest` bytes.

    Source: Li 1994, "Reservoir-sampling algorithms of time complexity O(n(1 + log(N/n)))".
    """
    uniform = _uniform(seed)
    sample: list[str] = []
    seen = 0
    weight = 1.0
    following = count - 1  # number of the next line that replaces one of the sample
    pieces = ((each, part) for each in documents for _, part in cut(each.data, b"\n", PIECE))
    for document, part in pieces:
        lines = [line for line in part.split(b"\n") if 0 < len(line) <= longest]
        filling = lines[: count - len(sample)]
        sample += [_text_of(line, document) for line in filling]
        while following < seen + len(lines):
            if following >= count:
                line = _text_of(lines[following - seen], document)
                sample[int(next(uniform) * count)] = line
            weight *= math.exp(math.log(next(uniform)) / count)
            following += 1 + int(math.log(next(uniform)) / math.log1p(-weight))
        seen += len(lines)
    return sample


def _text_of(line: bytes, document: Document) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        utf8_text(document.data[:], document.title)  # raises with the position
        raise


def _uniform(seed: int) -> Iterator[float]:
    bits = np.random.Philox(np.random.SeedSequence(seed))
    while True:
        yield from ((bits.random_raw(1024) >> np.uint64(11)) + 0.5) * 2.0**-53


def _documents(source: Source, splits: Iterable[str], path: str) -> Iterator[Document]:
    for split in splits:
        documents = text_documents(source.documents(split))
        yield from reported(documents, f"{path}, {split}", source.count(split))
