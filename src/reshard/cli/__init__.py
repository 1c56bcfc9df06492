"""The command line: one module per command, and what they share.

    commands.py          what every command has: name, summary, examples
    arguments.py         options that several commands take, and the shardings they name
    job.py               whether a command runs in many processes at once
    rules_named.py       rules of a system, or of a file
    plan_command.py      `reshard plan`: what a reshard does and costs
    compare_command.py   `reshard compare`: what it costs from each sharding to each
    run_command.py       `reshard run`: does it, from file to files
    show_command.py      `reshard show`: draws who holds what
    view_command.py      `reshard view`: what another command is about, as a page
    einsum_command.py    `reshard einsum`: where a contraction is computed and what it costs
    inspect_command.py   `reshard inspect`: reads what XLA prints
    model_command.py     `reshard model`: what a whole model's switch of layouts costs
    checkpoint_command.py `reshard checkpoint`: reads, converts and compares checkpoints
    propagate_command.py `reshard propagate`: a program's shardings carried through
    search_command.py    `reshard search`: the layouts in which a program costs least
    networks_command.py  `reshard networks`: which networks there are, and what one of them is
    calibrate_command.py `reshard calibrate`: measures the network at hand, as a file
    bench_command.py     `reshard bench`: how long planning takes
    completion_command.py `reshard completion`: a script by which a shell completes commands and options
    program_arguments.py the file of a program, and how it is placed
    output.py            standard output and standard error
    progress.py          long work, as it goes on
    interrupts.py        signals as exceptions
    storage/             tensors on disk: reading, moving, writing, checking

A command is a function of its parsed arguments that prints and returns nothing.
What goes wrong comes out of it as an exception, and only here becomes a sentence and an exit status.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import reshard
from reshard.cli import output
from reshard.cli.help_format import HelpFormatter
from reshard.cli.interrupts import Terminated, raised
from reshard.errors import ReshardError

__all__ = ["main"]

COMMANDS = (
    *("plan", "compare", "run", "show", "view", "einsum", "propagate", "search", "inspect"),
    *("model", "checkpoint", "networks", "calibrate", "bench", "completion"),
)
"""In the order in which `--help` lists them; the module of each loads when it is called, or listed."""
DONE, REFUSED, MISUSED, INTERRUPTED, NO_READER = 0, 1, 2, 130, 141
"""Exit statuses. The last two are what a shell reports of a program that a signal ended."""

EXAMPLES = """\
examples:
  reshard plan --mesh D=2,Y=8,X=4,T=4 --shape 2048,2048 '[{"D"}, {"X", "Y"}]' '[{}, {"D", "Y", "X", "T"}]'
  reshard run weights.npy --mesh x=2,y=4 --target '[{"x"}, {"y"}]' --out sharded
  reshard show --mesh x=2,y=2 --shape 4,4 '[{"x"}, {"y"}]'
  python train.py 2>&1 | reshard inspect

exit status: 0 done; 1 refused, with the reason on standard error; 2 misused; 130 interrupted
"""


def build_parser(names: Sequence[str] = COMMANDS) -> argparse.ArgumentParser:
    """The parser of commands, of all unless told which."""
    parser = argparse.ArgumentParser(
        prog="reshard",
        description="Moves a tensor from any layout over a set of devices to any other, and says what that costs.",
        epilog=EXAMPLES,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"reshard {reshard.__version__}")
    commands = parser.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name in names:
        importlib.import_module(f"reshard.cli.{name}_command").add_to(commands)
    return parser


def needed(argv: Sequence[str]) -> Sequence[str]:
    """The commands whose parsers arguments need: the one that they begin with, none for the version, else all.

    >>> needed(["plan", "--help"]), needed(["--version"]), len(needed(["--help"])) == len(COMMANDS)
    (('plan',), (), True)
    """
    first = argv[0] if argv else ""
    return (first,) if first in COMMANDS else () if first == "--version" else COMMANDS


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status.

    Args:
        argv: the arguments after the program's name; those of the process if not given.
    """
    output.make_tolerant()
    try:
        with raised():
            status = _run_command(argv)
            output.flush()
    except BrokenPipeError:
        output.abandon()
        return NO_READER
    except KeyboardInterrupt as stop:
        terminated = isinstance(stop, Terminated)
        status = stop.status if isinstance(stop, Terminated) else INTERRUPTED
        output.complain("; ".join(["terminated" if terminated else "interrupted", *getattr(stop, "__notes__", [])]))
        output.abandon()
    except OSError as error:
        reason = error.strerror or error
        output.complain(f"{error.filename or 'standard output'} could not be read or written: {reason}")
        output.abandon()
        status = REFUSED
    return status


def _run_command(argv: Sequence[str] | None) -> int:
    """Parse and run; refusals become their sentence."""
    try:
        argv = sys.argv[1:] if argv is None else argv
        parser = build_parser(needed(argv))
        if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
            close = get_close_matches(argv[0], COMMANDS, 1)
            parser.error(f"{argv[0]!r} is no command{f'; did you mean {close[0]!r}' if close else ''}")
        args, unknown = parser.parse_known_args(argv)
        if unknown:  # the command's own usage says what it takes
            args.command_parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        args.command_function(args)
    except SystemExit as stop:  # argparse has said what it had to say
        return stop.code if isinstance(stop.code, int) else MISUSED
    except ReshardError as error:
        output.complain(str(error))
        return REFUSED
    except MemoryError:
        output.complain("there is not enough memory")
        return REFUSED
    except OSError:
        raise
    except Exception as error:
        if sys.flags.dev_mode:
            raise
        output.complain(f"a fault in reshard itself, {type(error).__name__}: {error}; python -X dev shows where")
        return REFUSED
    return DONE
