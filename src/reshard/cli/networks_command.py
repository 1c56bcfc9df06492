"""`reshard networks`: which networks there are by name, and what one of them is."""

from __future__ import annotations

import argparse
from textwrap import wrap

from reshard.cli import output
from reshard.cli.commands import Commands, add_command
from reshard.network import FAMILIES, Network
from reshard.network.presets import ALIASES, example_of
from reshard.tables import Passage, Table, plain

EXAMPLES = """\
examples:
  reshard networks
  reshard networks h200-4x8
  reshard networks h100-2x8 --json > mine.json

A network is a family and how much of it: hosts x devices, or the sizes of a torus, with the number of slices before
them where there are several. Where a name goes a file goes too, which ends in .json or has a slash in its name.
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "networks", run, "list the networks that have a name, or describe one", EXAMPLES)
    parser.add_argument("network", nargs="?", metavar="NETWORK", help="as h100-2x8, or a file of JSON")


def run(args: argparse.Namespace) -> None:
    """List or describe."""
    if (named := Network.named(args.network)) is not None:
        output.write_json(named.as_dict()) if args.json else print(plain(description(named)))
        return
    examples = [Network.preset(example_of(family)) for family in FAMILIES]
    if args.json:
        output.write_json([{"family": f} | n.as_dict() for f, n in zip(FAMILIES, examples, strict=True)])
        return
    rows = [("for example", "GB/s inside", "outside", "memory", "Tflop/s")]
    for network in examples:
        inside, outside = (f"{level.bandwidth / 1e9:.4g}" for level in (network.levels[0], network.levels[-1]))
        memory = f"{(network.memory_bandwidth or 0) / 1e9:.4g}"
        rows.append((network.name, inside, outside, memory, f"{(network.flops or 0) / 1e12:.4g}"))
    table = Table(rows, rows[0][1:])
    others = ", ".join(f"{alias} for {family}" for alias, family in ALIASES.items())
    print(plain([table, "", "also", *_folded(others), "", "reshard networks NAME describes one, with its sources"]))


def description(network: Network) -> list[Passage]:
    """What a network is, in lines."""
    lines: list[Passage] = [(line, "") for line in str(network).splitlines()]
    if network.memory_bandwidth is not None:
        lines.append(f"memory   {network.memory_bandwidth / 1e9:.4g} GB/s")
    if network.flops is not None:
        by_dtype = [f"{name} {value / 1e12:.4g}" for name, value in network.flops_by_dtype]
        lines += _folded(", ".join([f"compute  {network.flops / 1e12:.4g} Tflop/s", *by_dtype]))
    if network.copy_bandwidth is not None:
        lines.append(f"copies   {network.copy_bandwidth / 1e9:.4g} GB/s")
    if network.launch_s:
        lines.append(f"launch   {network.launch_s * 1e6:.3g} us a step")
    if network.call_s:
        lines.append(f"call     {network.call_s * 1e6:.3g} us a plan")
    if network.meet_s:
        lines.append(f"meet     {network.meet_s * 1e6:.3g} us for each doubling of devices that begin together")
    return lines + _folded(f"source   {network.source or 'not said'}")


def _folded(text: str) -> list[str]:
    """A line in lines of at most 80 columns, the further ones set in."""
    return wrap(text, 80, subsequent_indent="         ", break_on_hyphens=False)
