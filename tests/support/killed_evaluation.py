"""`brt.evaluate` in a process that SIGKILL ends while it writes a recording.

    python -m tests.support.killed_evaluation N --workdir=RUN --record

N: the write before which it dies.
"""

import itertools
import os
import signal
import sys

from brt import command_line, evaluate
from brt.evaluation import recording_writer


def main():
    put, numbers, last = recording_writer._put, itertools.count(1), int(sys.argv.pop(1))

    def dying(file, first, values):
        if next(numbers) == last:
            os.kill(os.getpid(), signal.SIGKILL)
        put(file, first, values)

    recording_writer._put = dying
    command_line.run(evaluate.main)


if __name__ == "__main__":
    main()
