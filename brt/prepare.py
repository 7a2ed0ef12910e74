"""Turns the corpus of a config into token stores.

python -m brt.prepare --gin_file=configs/quickstart.gin --splits=train,validation,test

With --train_vocabulary it makes the file of `Corpus.vocabulary` instead, and with
--describe_vocabulary it says what the vocabulary makes of a sample of the first split.
"""

from absl import flags

from brt import command_line
from brt.data.train_vocabulary import bound_training, train_vocabulary
from brt.data.vocabulary_report import report, sample_text
from brt.experiment import Experiment

FLAGS = flags.FLAGS
flags.DEFINE_list("splits", ["train", "validation", "test"], "Splits to prepare.")
flags.DEFINE_bool("train_vocabulary", False, "Make the file of Corpus.vocabulary, and stop.")
flags.DEFINE_bool(
    "describe_vocabulary", False, "Measure Corpus.vocabulary on the first of the splits, and stop."
)


def main():
    command_line.start()
    training = bound_training() if FLAGS.train_vocabulary else None
    corpus = Experiment.from_gin().trainer.corpus
    if training is not None:
        path = train_vocabulary(corpus.vocabulary, training, corpus.source)
        print(f"{path} is made", flush=True)
    if FLAGS.train_vocabulary or FLAGS.describe_vocabulary:
        print(report(corpus.vocabulary, sample_text(corpus.source.documents(FLAGS.splits[0]))))
        return
    for split in FLAGS.splits:
        corpus.prepare(split)
        manifest = corpus.open(split).manifest
        print(
            f"{corpus.path(split)}: {manifest['documents']:,} documents, "
            f"{manifest['tokens']:,} tokens, {manifest['bytes']:,} bytes, "
            f"{manifest['words']:,} words",
            flush=True,
        )


if __name__ == "__main__":
    command_line.run(main)
