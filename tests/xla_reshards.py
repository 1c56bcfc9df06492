"""What XLA does for a list of reshards: run as a program, so that its warnings can be read.

Standard input: a JSON list of [mesh axes, source, target, shape], where source and target list per dim the axes.
Standard output: a JSON list of [collectives, whether the log warned], in the same order.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from math import prod

COLLECTIVE = re.compile(r" (all-gather|all-to-all|collective-permute|all-reduce|reduce-scatter)(?:-start)?\(")
WARNING = b"Involuntary full rematerialization"


def main() -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    problems = json.load(sys.stdin)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", max(prod(size for _, size in axes) for axes, *_ in problems))
    found = []
    for axes, *ends, shape in problems:
        sizes = [size for _, size in axes]
        mesh = Mesh(np.array(jax.devices()[: prod(sizes)]).reshape(sizes), [name for name, _ in axes])
        source, target = (NamedSharding(mesh, PartitionSpec(*(tuple(dim) or None for dim in dims))) for dims in ends)
        function = jax.jit(lambda x: x, in_shardings=source, out_shardings=target)
        tensor = jax.ShapeDtypeStruct(tuple(shape), np.float32, sharding=source)
        with tempfile.TemporaryFile() as log:
            kept = os.dup(2)
            os.dup2(log.fileno(), 2)
            try:
                text = function.lower(tensor).compile().as_text()
            finally:
                os.dup2(kept, 2)
                os.close(kept)
            log.seek(0)
            found.append([COLLECTIVE.findall(text), WARNING in log.read()])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
