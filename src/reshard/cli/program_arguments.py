"""What commands take that place a program: its file, and how it is to be placed."""

from __future__ import annotations

import argparse

PROGRAM_FORM = """\
FILE holds meshes and then one line per value:
  sdy.mesh @mesh = <["data"=2, "model"=4]>
  x = input : bf16[1024, 512] <@mesh, [{"data"}, {?}]>
  w = input : bf16[512, 2048] <@mesh, [{}, {"model"}]>
  h = einsum "bd,df->bf" (x, w)
  a = relu "bf->bf" (h)
  out = output (a)
or a module of StableHLO with shardings of the sdy dialect, as jax.jit(f).lower(...).as_text() gives it, by itself or
somewhere in a log; it may be a folder of dumps that holds one such module, and - is standard input.
"""


def add_placing(parser: argparse.ArgumentParser) -> None:
    """The options for how a program is placed."""
    parser.add_argument("--network", metavar="NAME", help="choose by time on this network, as h100-2x8")
    parser.add_argument(
        "--goal", choices=("bytes", "balanced"), help="what is least; balanced weighs work in, as the network computes"
    )
    parser.add_argument("--memory-limit", type=int, metavar="BYTES", help="what a device may hold at once")
    parser.add_argument("--seconds", type=float, metavar="N", help="end the search after so long, with the best so far")


def add_program(parser: argparse.ArgumentParser) -> None:
    """The argument for the file of a program."""
    parser.add_argument("file", metavar="FILE", help="the program; a folder, or - for standard input")
