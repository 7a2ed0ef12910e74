"""The former name of `brt sweep`, with the same flags."""

from brt import command_line, sweep

if __name__ == "__main__":
    command_line.run(sweep.main)
