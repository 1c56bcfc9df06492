"""`reshard model`: what it takes to move a known model from one system's layout to another's."""

from __future__ import annotations

import argparse

from reshard.cli import output
from reshard.cli.commands import Commands, add_command
from reshard.cli.rules_named import rules_named
from reshard.errors import ReshardError
from reshard.models import MODELS, model_named, plan_model
from reshard.models.model_plan import ModelPlan
from reshard.models.published import published_blocks, published_for
from reshard.tables import plain

EXAMPLES = """\
examples:
  reshard model qwen3-30b-a3b --from fsdp:8 --to vllm:tp=8
  reshard model qwen3-235b-a22b --from megatron:tp=2,pp=24+23+23+24,ep=16 --to vllm:tp=8,dp=8,ep=on \\
      --network gb200-nvl72-4x72
  reshard model llama-3-70b --from fsdp:8 --to vllm:tp=4,replicas=2 --same-devices --json
  reshard model --list

a system is hf, hf:tp=N, fsdp:N, megatron:tp=,pp=,ep=,etp=,dp=, vllm:tp=,dp=,ep=on|off,replicas=, or a file of rules
"""


def add_to(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = add_command(commands, "model", run, "say what a switch of a whole model's layout costs", EXAMPLES)
    parser.add_argument("model", metavar="MODEL", nargs="?", help="a model's name, as qwen3-235b-a22b")
    parser.add_argument("--list", action="store_true", help="list the models that are known")
    parser.add_argument("--from", dest="source", metavar="SYSTEM", help="where the model is, as megatron:tp=2,pp=4")
    parser.add_argument("--to", dest="target", metavar="SYSTEM", help="where it is wanted, as vllm:tp=8")
    parser.add_argument("--network", metavar="NAME", help="add the time on this network, as h100-2x8")
    parser.add_argument("--same-devices", action="store_true", help="both are on devices 0, 1, 2, …, not side by side")
    parser.add_argument("--in-flight", type=int, default=256 << 20, metavar="BYTES", help="what a device has under way")
    parser.add_argument("--cast", metavar="DTYPE", help="the dtype at the target")


def subject(args: argparse.Namespace) -> ModelPlan:
    """What the command is about."""
    if args.model is None or args.source is None or args.target is None:
        raise ReshardError("bad-argument", "a model, --from and --to must be given; --list shows the models")
    model = model_named(args.model)
    source = rules_named(args.source, args.model, 0)
    first = 0 if args.same_devices else 1 + max(source.mesh.devices)
    target = rules_named(args.target, args.model, first)
    cast = {".*": args.cast} if args.cast else None
    return plan_model(model.tensors(), source, target, network=args.network, in_flight=args.in_flight, cast=cast)


def run(args: argparse.Namespace) -> None:
    """Plan and print."""
    if args.list:
        models = {name: sum(tensor.nbytes for tensor in model.tensors().values()) for name, model in MODELS.items()}
        if args.json:
            output.write_json(models)
        else:
            print("\n".join(f"{name}  {size / 1e9:.1f} GB" for name, size in models.items()))
        return
    plan = subject(args)
    figures = published_for(args.model, plan)
    if args.json:
        output.write_json({**plan.as_dict(), "published": [figure.as_dict(plan) for figure in figures]})
    else:
        blocks = [*plan.blocks(), *published_blocks(figures, plan)]
        output.write_shown(plain(blocks), blocks)
