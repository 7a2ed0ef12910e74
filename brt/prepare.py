"""Turns the corpus of a config into token stores.

python -m brt.prepare --gin_file=configs/quickstart.gin --splits=train,validation,test
"""

from absl import flags

from brt import command_line
from brt.experiment import Experiment

FLAGS = flags.FLAGS
flags.DEFINE_list("splits", ["train", "validation", "test"], "Splits to prepare.")


def main():
    command_line.start()
    whole = Experiment.from_gin().trainer.corpus
    for split in FLAGS.splits:
        whole.prepare(split)
        for corpus in whole.corpora:
            manifest = corpus.open(split).manifest
            print(
                f"{corpus.path(split)}: {manifest['documents']:,} documents, "
                f"{manifest['tokens']:,} tokens, {manifest['bytes']:,} bytes, "
                f"{manifest['words']:,} words",
                flush=True,
            )


if __name__ == "__main__":
    command_line.run(main)
