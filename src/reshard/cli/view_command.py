"""`reshard view`: what another command is about, as a page."""

from __future__ import annotations

import argparse
import importlib
import webbrowser
from functools import partial
from pathlib import Path
from typing import Any

from reshard.cli import output
from reshard.cli.commands import Commands, add_command
from reshard.errors import ReshardError

VIEWED = ("plan", "einsum", "propagate", "model", "inspect", "compare")
"""The commands whose subject has a page; the module of each has a function `subject`."""

EXAMPLES = """\
examples:
  reshard view plan --mesh x=2,y=4 --shape 8,8 '[{"y"}, {}]' '[{"x"}, {"y"}]' --out plan.html --open
  reshard view propagate layer.txt --out layer.html
  reshard view inspect train.log --mesh x=4,y=2 --out findings.html
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser, and under it those that it shows."""
    parser = add_command(commands, "view", None, "write a page that opens from disk and needs no network", EXAMPLES)
    viewed = parser.add_subparsers(title="what is viewed", dest="viewed", metavar="COMMAND", required=True)
    for name in VIEWED:
        module = importlib.import_module(f"reshard.cli.{name}_command")
        module.add_to(viewed)
        shown = viewed.choices[name]
        shown.add_argument("--out", metavar="FILE", required=True, help="the page; a file that is there is replaced")
        shown.add_argument("--open", action="store_true", help="open it in the browser")
        if name == "inspect":
            shown.add_argument("--beside", metavar="PATH", help="a dump or a log that is shown next to it")
        shown.set_defaults(command_function=partial(run, module.subject))


def run(subject: Any, args: argparse.Namespace) -> None:
    """Write the page."""
    path, viewed = Path(args.out), subject(args)
    more = {"beside": subject(argparse.Namespace(**vars(args) | {"paths": [args.beside], "program": None}))} if getattr(
        args, "beside", None
    ) else {}  # fmt: skip
    try:
        path.write_text(viewed.to_html(**more), encoding="utf-8")
    except OSError as error:
        raise ReshardError("write-failed", f"{path} could not be written: {error.strerror}") from None
    if args.json:
        output.write_json({"page": str(path)})
    else:
        print(path)
    if args.open:
        webbrowser.open(path.resolve().as_uri())
