"""Flags and start-up that the commands share."""

import io
import os
import platform
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from logging import Formatter
from pathlib import Path
from typing import Any

import jax
from absl import app, flags, logging

from brt import config
from brt.bindings.errors import message
from brt.bindings.gin_files import is_part
from brt.data.corpus import StoreMissing  # noqa: F401  (an OSError with a message of its own)
from brt.data.extras import MissingExtra
from brt.data.stores import store_cache
from brt.data.text_flag import define_text, expand_text, text_name
from brt.host import compilation_cache, processes
from brt.host.progress import say
from brt.host.terminal import guard_streams, printable
from brt.storage.paths import folder_of
from brt.storage.shipped import configs_root
from brt.training.checkpoints.checkpoint import CheckpointError

FLAGS = flags.FLAGS

flags.DEFINE_multi_string("gin_file", [], "A gin file; may be repeated, later ones override.")
flags.DEFINE_multi_string(
    "gin_bindings", [], "A gin line, 'NAME = VALUE'; --gin.NAME=VALUE says the same."
)
flags.DEFINE_multi_string("gin_search_paths", [], "Further folders to find included files in.")
flags.DEFINE_list(
    "allow_imports",
    [],
    "MODULE[,MODULE]: modules outside brt whose code gin files may run by an `import` line.",
)


class _Folder(flags.ArgumentParser):
    syntactic_help = "a folder"

    def parse(self, argument):
        return folder_of(argument)


def define_folder(name: str, text: str) -> None:
    flags.DEFINE(_Folder(), name, None, text, flags.FLAGS, flags.ArgumentSerializer())


define_folder(
    "workdir", "The run folder. Default, in brt.train only: runs/, then the name of the config."
)
flags.DEFINE_string(
    "compilation_cache",
    None,
    "Folder of compiled programs, with which the next start compiles nothing; empty for none. "
    "Default: ~/.cache/brt/compiled.",
)
flags.DEFINE_string(
    "store_cache",
    None,
    "Folder of this host's copies of token stores that lie in a bucket; none to read them there. "
    "Default: ~/.cache/brt/stores.",
)
flags.DEFINE_bool(
    "distributed", False, "Join the other processes of a TPU pod or a Slurm job (found by JAX)."
)
flags.DEFINE_string("coordinator_address", None, "HOST:PORT of process 0.")
flags.DEFINE_integer("num_processes", None, "Number of processes.")
flags.DEFINE_integer("process_id", None, "Number of this process.")


def define_topology() -> None:
    if "topology" not in FLAGS:
        flags.DEFINE_string(
            "topology",
            None,
            "Compile the training step for this slice of TPUs or these GPUs: v4-32, h100-4x8.",
        )


def define_step() -> None:
    if "step" not in FLAGS:
        flags.DEFINE_string(
            "step",
            None,
            "The checkpoint to read: a step, best or newest. Default: the best one of a run that "
            "keeps it (CheckpointPolicy.keep_best), else the newest.",
        )


EXPLAINED = (config.ConfigError, CheckpointError, MissingExtra, OSError, ValueError)
"""Errors whose messages are written for users."""

MAY_BE_EMPTY = ("compilation_cache",)
"""Text flags with a meaning of empty values."""

INTERRUPTED = 130
"""Exit status after Ctrl-C."""
TERMINATED = 143
"""Exit status after SIGTERM outside of the training loop."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP came; the message is advice."""


@contextmanager
def terminable(advice: str) -> Iterator[None]:
    """Ends the command with the sentence `advice` on SIGTERM or SIGHUP."""

    def end(number, frame):
        raise Terminated(f"Asked to end: {advice}")

    # Handlers exist in the main thread only. With several processes JAX handles SIGTERM, and its
    # handler could not be restored; the first step after this obeys it.
    elsewhere = threading.current_thread() is not threading.main_thread()
    if elsewhere or processes.is_one_of_several():
        yield
        return
    with processes.handling(processes.signals_to_end(), end):
        yield


class _Sentences(Formatter):
    def format(self, record):
        return f"{record.levelname.capitalize()}: {super().format(record)}"


def run(main: Callable[..., Any], takes_arguments: bool = False) -> None:
    """Runs `main()` after parsing flags; `EXPLAINED` errors end in their message and status 1.
    takes_arguments: pass on words that are not flags instead of refusing them.
    """

    def explained(argv):
        try:
            compilation_cache.use(FLAGS.compilation_cache)
            store_cache.use(FLAGS.store_cache)
            _refuse_empty_flags()
            if argv[1:] and not takes_arguments:
                raise ValueError(
                    f"{argv[1]!r} is not a flag; bindings are written --gin.NAME=VALUE."
                )
            main(*([argv[1:]] if takes_arguments else []))
            sys.stdout.flush()
        except KeyboardInterrupt:
            say("\nInterrupted.")
            _leave(INTERRUPTED)
        except Terminated as signal_error:
            say(f"\n{signal_error}")
            _leave(TERMINATED)
        except (*EXPLAINED, jax.errors.JaxRuntimeError) as error:
            reason = str(error).partition("\n")[0]
            several = processes.is_one_of_several()
            if several and processes.is_failed_collective(error):
                processes.leave(
                    f"Another process ended, or cannot be reached ({reason}). Start all processes "
                    "again: they resume from the newest checkpoint."
                )
            if not isinstance(error, EXPLAINED):
                if not several:
                    raise
                traceback.print_exc()
                processes.leave()
            logging.debug("traceback", exc_info=True)
            lines = [*message(error).split("\n"), *filter(None, [_user_code(error)])]
            shown = "\n".join(map(printable, lines))
            say(f"\nError: {_unwritten_output(error) or shown}")
            _leave(1)

    _open_missing_streams()
    for module in (__name__, define_text.__module__):  # for --help
        for flag in FLAGS.get_key_flags_for_module(module):
            FLAGS.register_key_flag_for_module(sys.argv[0], flag)
    _hide_further_checkpoint_errors()
    for stream in (sys.stdout, sys.stderr):
        # An ASCII terminal or pipe cannot encode é.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace" if stream is sys.stdout else "backslashreplace")
    guard_streams()
    logging.set_verbosity(logging.WARNING)
    if sys.stderr.isatty():  # logs need time and line
        logging.get_absl_handler().python_handler.setStream(sys.stderr)
        logging.get_absl_handler().setFormatter(_Sentences("%(message)s"))
    # Orbax logs whole tracebacks from its threads; `Checkpoints` reports these errors.
    logging.get_absl_logger().addFilter(
        lambda record: "orbax" not in record.pathname or logging.level_debug()
    )
    app.run(explained, flags_parser=_parsed)


def _user_code(error: BaseException | None) -> str:
    """Returns the line of a module of --allow_imports that raised an error, if one did."""
    both = "brt", *FLAGS.allow_imports
    while error is not None:
        frames = [f for f in traceback.walk_tb(error.__traceback__) if _is_part(f[0], both)]
        if frames and _is_part(frames[-1][0], FLAGS.allow_imports):
            (frame,) = traceback.StackSummary.extract(frames[-1:])
            return (
                f"It was raised by {frame.name}, line {frame.lineno} of {frame.filename}: "
                f"`{frame.line}`. -v=1 shows the traceback."
            )
        error = error.__cause__
    return ""


def _is_part(frame, packages):
    return is_part(frame.f_globals.get("__name__", ""), packages)


def _refuse_empty_flags():
    for module, defined in FLAGS.flags_by_module_dict().items():
        for flag in defined:
            empty = flag.present and flag.value == "" and flag.name not in MAY_BE_EMPTY
            if empty and not module.startswith("absl"):
                raise ValueError(f"--{flag.name} is empty: give it a value, or leave it out.")


def _open_missing_streams():
    """Opens the null device for closed standard streams, else the next files get their numbers."""
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: SIM115


def _unwritten_output(error):
    if not isinstance(error, OSError) or error.filename or not error.errno:
        return ""
    try:
        print(flush=True)
    except OSError as error:
        _discard_output()
        return (
            f"Cannot write to the standard output ({error.strerror}): send it elsewhere, or free "
            "some space, and run the same command again."
        )
    return ""


def _discard_output():
    # Python would write the rest again at exit.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    os.dup2(sys.stdout.fileno(), 1)


def _hide_further_checkpoint_errors():
    before = sys.unraisablehook

    def hook(unraisable):
        if str(unraisable.exc_value) != "Event loop is closed":
            before(unraisable)

    sys.unraisablehook = hook


def _leave(status: int):
    if processes.is_one_of_several():
        processes.leave(status=status)
    sys.exit(status)


def _parsed(argv):
    try:
        try:
            return FLAGS(config.split_flags(argv))
        finally:
            sys.stdout.flush()  # of --help
    except (flags.Error, ValueError) as error:  # absl's own flags raise ValueError
        say(f"Error: {error}")
        sys.exit(2)
    except BrokenPipeError:
        _discard_output()
        sys.exit(1)
    except SystemExit:  # absl exits with 1 after --help
        sys.exit(0)


def start(trains: bool = True) -> None:
    """Joins the other processes, if any, and reads the gin files and bindings.

    trains: as of `text_bindings`.
    """
    if FLAGS.coordinator_address:
        processes.join(FLAGS.coordinator_address, FLAGS.num_processes, FLAGS.process_id)
    elif FLAGS.distributed:
        processes.join()
    expand_text(trains)
    config.parse(FLAGS.gin_file, FLAGS.gin_bindings, FLAGS.gin_search_paths, FLAGS.allow_imports)
    config.evaluate_macros()


def gin_flags() -> list[str]:
    gin_lines = [
        f"--{name}={value}"
        for name in ("gin_file", "gin_bindings", "gin_search_paths")
        for value in getattr(FLAGS, name)
    ]
    return gin_lines + flags_of_machine()


def flags_of_machine() -> list[str]:
    """Returns the flags of caches and allowed modules, for another command of brt."""
    values = {name: getattr(FLAGS, name) for name in ("store_cache", "compilation_cache")}
    values["allow_imports"] = ",".join(FLAGS.allow_imports) or None
    return [f"--{name}={value}" for name, value in values.items() if value is not None]


def default_workdir(gin_files: Sequence[str]) -> str:
    """Returns the default run folder: `runs/MODEL-DATA` of two gin files."""
    names = [Path(name).stem for joined in gin_files for name in config.split_files(joined)]
    if FLAGS.text:
        names = [*names[1:], text_name(FLAGS.text)]
    if not names:
        raise ValueError("--workdir is missing: name a folder for checkpoints and records.")
    return os.path.join("runs", "-".join(names))


def malloc_remedy() -> str | None:
    """Returns the path of scripts/malloc.sh if glibc frees memory at every step.

    None in notebooks, where it cannot change, and without a checkout. Measured in
    docs/benchmarks/training.md.
    """
    script = configs_root() / "scripts" / "malloc.sh"
    is_slow = (
        jax.default_backend() == "cpu"
        and platform.libc_ver()[0] == "glibc"
        and "glibc.malloc." not in os.environ.get("GLIBC_TUNABLES", "")
        and "JPY_PARENT_PID" not in os.environ
    )
    return os.path.relpath(script) if is_slow and script.is_file() else None
