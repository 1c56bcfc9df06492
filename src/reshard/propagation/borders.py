"""Windows among the options of a value: what operations that reach over the edges of tiles want.

An operation of which a label is cut wants its operand not as the label is cut but as it reads it: with the border
that its tile of the result is made of (`reshard.operations.reaching`).
Such a window is an option of the operand in which no value is kept; a reshard from wherever the value is brings just
what is lacking (`lacking.py`), so the border has its price beside all other reshards.

By hand, on x = 4, a roll by 1 of 16 elements: a device has its 4, and lacks the one before them.

>>> from reshard.contraction.tasks import calculation_of
>>> from reshard.mesh import Mesh
>>> from reshard.operations.rules import operation_rule
>>> from reshard.propagation.lacking import lacked_of_windows
>>> from reshard.propagation.program import Program
>>> from reshard.propagation.space import Pieces
>>> from reshard.propagation.ways import Along, layouts_of
>>> program = Program(Mesh.of(x=4))
>>> rolled = program.roll(program.input("a", (16,), "float32"), (1,), (0,))
>>> calculation = calculation_of(program.operations[-1], operation_rule(program.operations[-1]))
>>> pieces = Pieces(program.mesh, [])
>>> options, nothing = Options(pieces, (16,)), Along(frozenset(), "sum")
>>> layouts = layouts_of(calculation, pieces, [options, options], [nothing, nothing])
>>> wanted = with_windows(layouts, calculation, [options, options], "ceil").used[0]
>>> [options.all[number].sharding and options.all[number].sharding.text() for number in wanted.tolist()]
[None, '[{"x", window(-1:3, 3:7, 7:11, 11:15, wrap)}]']
>>> lacked_of_windows(options, "ceil")[int(wanted[1])].tolist()
[0.0, 1.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from reshard.contraction.tasks import Calculation
from reshard.deal import Window
from reshard.operations.reaching import windowed
from reshard.propagation.space import Options
from reshard.propagation.ways import Layouts


def with_windows(layouts: Layouts, calculation: Calculation, tensors: Sequence[Options], uneven: str) -> Layouts:
    """Layouts with the windows that they want of the operands, which are added to the options of these.

    Args:
        layouts: of the calculation.
        calculation: what is computed.
        tensors: the options of the operands, and last of the result.
        uneven: the rule by which tiles are cut.
    """
    rows, which = np.unique(np.stack([*layouts.used, layouts.made], axis=1), axis=0, return_inverse=True)
    wanted, known = rows[:, :-1].copy(), dict[object, Window | None]()
    for number, row in enumerate(rows.tolist()):
        shardings = [
            options.pieces.sharding(options.all[option], calculation.reduction, uneven)
            for options, option in zip(tensors, row, strict=True)
        ]
        ends = windowed(calculation.pattern, calculation.reaches, shardings, calculation.shapes, known)
        for operand, (end, owned) in enumerate(zip(ends[:-1], shardings, strict=False)):
            if end is not owned:
                options = tensors[operand]
                wanted[number, operand] = options.add(options.all[row[operand]]._replace(sharding=end))
    return replace(layouts, used=tuple(wanted[which.reshape(-1)].T))
