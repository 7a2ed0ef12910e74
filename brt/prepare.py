r"""Makes token stores of the corpus of a config, or shows one.

python -m brt.prepare --gin_file=configs/quickstart.gin --splits=train,validation,test
python -m brt.prepare --inspect=stores/stdlib_bytes/train --document=0

With --train_vocabulary it makes the file of `Corpus.vocabulary` instead, and with
--describe_vocabulary it measures the vocabulary on a sample of the first split. With
--runner the work is done on Apache Beam, whose own options follow `--`:

python -m brt.prepare --gin_file=... --runner=DataflowRunner --shard_bytes=268435456 -- \
    --project=PROJECT --region=REGION --temp_location=gs://BUCKET/tmp --setup_file=./setup.py
"""

import contextlib
from collections.abc import Sequence

import gin
from absl import flags, logging

from brt import command_line, config
from brt.bindings.errors import MissingBinding, building
from brt.data.corpus import Corpus
from brt.data.mixture import Mixture
from brt.data.splits import check_split
from brt.data.stores.distributed import BeamRunner
from brt.data.stores.inspection import describe, document_ends, verify
from brt.data.stores.token_store import TokenStore
from brt.data.text_flag import define_text
from brt.data.vocabularies.base import ByteVocabulary, Vocabulary
from brt.data.vocabularies.named import as_vocabulary
from brt.data.vocabularies.report import report, sample_text
from brt.data.vocabularies.training import VocabularyTraining, bound_training, train_vocabulary
from brt.experiment import Experiment
from brt.host.terminal import printable
from brt.run.checks import check_vocabulary

FLAGS = flags.FLAGS
define_text()
flags.DEFINE_list("splits", ["train", "validation", "test"], "Splits to prepare.")
flags.DEFINE_integer(
    "workers", None, "Processes that read and encode; one a CPU by default.", lower_bound=1
)
flags.DEFINE_integer(
    "shard_bytes",
    None,
    "Bytes of documents after which a token file of the store ends; about 8 MB by default.",
    lower_bound=1,
)
flags.DEFINE_string(
    "runner",
    None,
    "Runner of Apache Beam that reads and encodes instead of processes of this machine, such as "
    "DirectRunner or DataflowRunner; its options follow `--`.",
)
command_line.define_folder("inspect", "Describe and verify this token store; needs no gin file.")
flags.DEFINE_string("document", None, "Title or number of a document to show with --inspect.")
flags.DEFINE_bool("train_vocabulary", False, "Make the file of Corpus.vocabulary, and stop.")
flags.DEFINE_bool(
    "describe_vocabulary", False, "Measure Corpus.vocabulary on the first of the splits, and stop."
)


EXCLUDED = {
    "inspect": (
        *("splits", "workers", "shard_bytes", "runner"),
        *("train_vocabulary", "describe_vocabulary"),
    ),
    "train_vocabulary": ("workers", "shard_bytes", "runner"),
    "describe_vocabulary": ("workers", "shard_bytes", "runner"),
}
"""Flags without effect together with another one."""


def main(arguments: Sequence[str] = ()) -> None:
    with command_line.terminable("what is finished is kept, and the same command goes on from it."):
        prepare(arguments)


def prepare(arguments: Sequence[str] = ()) -> None:
    """Prepares, inspects, or makes a vocabulary.

    arguments: words of the command line that are not flags: options of Apache Beam.
    """
    check_arguments(arguments)
    command_line.start()
    if FLAGS.inspect:
        inspect(TokenStore(FLAGS.inspect), FLAGS.document)
        return
    if not FLAGS.splits:
        raise ValueError("--splits is empty: name at least one split, as in --splits=train.")
    for split in FLAGS.splits:
        check_split(split, "--splits")
    training = None
    if FLAGS.train_vocabulary:
        training = bound_training()
        config.evaluate_macros(missing=2**20)  # no model is made
    experiment = Experiment.from_gin()
    whole = experiment.trainer.corpus
    if FLAGS.train_vocabulary or FLAGS.describe_vocabulary:
        make_or_describe(whole, training)
        return
    check_vocabulary(experiment)
    runner = BeamRunner(FLAGS.runner, arguments) if FLAGS.runner else None
    for split in FLAGS.splits:
        for corpus in whole.corpora:
            if FLAGS.shard_bytes and corpus.exists(split):
                logging.warning(
                    "%s is prepared already, and --shard_bytes changes nothing in it: remove it "
                    "to have it made again.",
                    corpus.path(split),
                )
        whole.prepare(split, workers=FLAGS.workers, shard_bytes=FLAGS.shard_bytes, runner=runner)
        for corpus in whole.corpora:
            manifest = corpus.open(split).manifest
            documents = manifest["documents"]
            # A store of ids without a text has neither bytes nor words.
            sizes = (f", {manifest[n]:,} {n}" for n in ("bytes", "words") if manifest[n])
            print(
                f"{corpus.path(split)}: {documents:,} document{'s' * (documents != 1)}, "
                f"{manifest['tokens']:,} tokens{''.join(sizes)}",
                flush=True,
            )


def check_arguments(arguments: Sequence[str]) -> None:
    if FLAGS.document is not None and not FLAGS.inspect:
        raise ValueError("--document shows a document of a store: give --inspect=STORE with it.")
    for mode, excluded in EXCLUDED.items():
        for name in excluded:
            if FLAGS[mode].present and FLAGS[mode].value and FLAGS[name].present:
                raise ValueError(f"--{mode} prepares no store: leave --{name} out.")
    word = next(iter(arguments), "")
    if word and (FLAGS.runner is None or not word.startswith("-")):
        raise ValueError(
            f"{word!r} is not a flag; bindings are written --gin.NAME=VALUE, and options of Apache "
            "Beam --runner=NAME -- --NAME=VALUE."
        )
    if FLAGS.runner is not None and FLAGS.workers is not None:
        raise ValueError(
            f"--workers={FLAGS.workers} is for the processes of this machine: give --runner="
            f"{FLAGS.runner} its own option, such as -- --direct_num_workers={FLAGS.workers}."
        )


def make_or_describe(whole: Corpus | Mixture, training: VocabularyTraining | None) -> None:
    corpus, *others = whole.corpora
    if others:
        raise ValueError(
            "--train_vocabulary and --describe_vocabulary read one Corpus; bind Trainer.corpus "
            "to one of the Mixture's."
        )
    if training is not None:
        path = train_vocabulary(corpus.vocabulary, training, corpus.source)
        print(f"{path} is made", flush=True)
    print(report(corpus.vocabulary, sample_text(corpus.source.documents(FLAGS.splits[0]))))


def inspect(store: TokenStore, document: str | None) -> None:
    if document is None:
        print(describe(store), flush=True)
    else:
        print(document_ends(store, document, vocabulary_of(store)), flush=True)
    verify(store)
    print("verified: the files are those the manifest describes")


def vocabulary_of(store: TokenStore) -> Vocabulary | None:
    """Returns the vocabulary of the config, or bytes without one; None if the store has another."""
    vocabulary: Vocabulary = ByteVocabulary()
    if FLAGS.gin_file or FLAGS.gin_bindings:
        bound = as_vocabulary(gin.get_bindings("Corpus").get("vocabulary"))
        with contextlib.suppress(MissingBinding), building():  # of a model's config alone
            vocabulary = bound or Corpus().vocabulary  # type: ignore[call-arg]  # bound by gin
    entry = store.manifest["vocabulary"]
    if vocabulary.fingerprint == entry["fingerprint"]:
        return vocabulary
    sentence = (
        f"ids only: the store was made with {entry['name']} ({entry['fingerprint']:.12}), and not "
        f"with {vocabulary.name}. To see text, give the --gin_file the store was made with."
    )
    print(printable(sentence))
    return None


if __name__ == "__main__":
    command_line.run(main, takes_arguments=True)
