"""What every command has: a name, a summary, examples, and the options that all take.

It loads nothing that a command may do without.
"""

from __future__ import annotations

import argparse
from typing import Any, Protocol

from reshard.cli.help_format import HelpFormatter

FORMS = """\
a sharding may be written as
  [{"x"}, {"y", "z"}]                       Shardy's text, bare or whole
  [[0], [1, 2]]                             mesh axes by number, per dim
  {devices=[2,4]<=[8]}                      XLA's text
  A[I_x, J_yz]                              named dims, axes of one letter
  P('x', ('y', 'z'))                        JAX's specs, and its reprs
  [Shard(0), Replicate()], S(0)R            torch's placements, one per axis
and a mesh as x=2,y=4, in Shardy's text, or as JAX's Mesh or torch's DeviceMesh print
"""


class Commands(Protocol):
    """What argparse gives to add commands to."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser:
        """A parser for one more command."""
        ...


def add_command(commands: Commands, name: str, function: Any, summary: str, epilog: str) -> argparse.ArgumentParser:
    """A command with the options that all have."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog + "\n" + FORMS,
        formatter_class=HelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(command_function=function, command_parser=parser)
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    return parser
