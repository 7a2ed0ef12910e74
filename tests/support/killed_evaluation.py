"""`brt.evaluate` in a process that SIGKILL ends while it writes a recording.

    python -m tests.support.killed_evaluation N --workdir=RUN --record

N: the file of a document before which it dies.
"""

import itertools
import os
import signal
import sys

from brt import command_line, evaluate
from brt.evaluation import recording_writer


def main():
    write, numbers, last = recording_writer.replace_file, itertools.count(1), int(sys.argv.pop(1))

    def dying(folder, name, data):
        if next(numbers) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        write(folder, name, data)

    recording_writer.replace_file = dying
    command_line.run(evaluate.main)


if __name__ == "__main__":
    main()
