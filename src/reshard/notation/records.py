"""What a record of an engine's object, or of a repr of one, means as a mesh or a sharding.

>>> from reshard.foreign import SpecRecord
>>> print(sharding_of_record(SpecRecord((("x",),)), Mesh.of(x=2, y=4), 2).text())
[{"x"}, {}]
"""

from __future__ import annotations

from dataclasses import replace

from reshard.errors import ReshardError
from reshard.foreign import PlacedRecord, PlacementsRecord, ShardingRecord, SpecRecord, XlaRecord
from reshard.mesh import Mesh
from reshard.notation import placements, xla
from reshard.sharding import Sharding


def sharding_of_record(record: ShardingRecord, mesh: Mesh | None = None, ndim: int | None = None) -> Sharding:
    """The sharding that a record means.

    Args:
        record: of a spec, placements, a sharding of XLA, or one of these with its mesh.
        mesh: what a record without a mesh is on; what XLA's is put in terms of, where its axes can.
        ndim: the number of dims of the tensor; without it a spec is for as many dims as it names.

    Raises:
        ReshardError: `unknown-mesh` where a mesh is needed, `rank-mismatch`, `bad-argument` where placements come
            without the number of dims or are not one per mesh dim, `cannot-express`, or the code of the rule of
            `Sharding` that is broken.
    """
    if isinstance(record, PlacedRecord):
        mesh, record = Mesh.of_record(record.mesh), record.sharding
    if isinstance(record, XlaRecord):
        return _of_xla(record, mesh, ndim)
    if mesh is None:
        kind = "a PartitionSpec does" if isinstance(record, SpecRecord) else "placements do"
        raise ReshardError("unknown-mesh", f"{kind} not say on which mesh; a mesh must be given")
    if isinstance(record, PlacementsRecord):
        if ndim is None:
            raise ReshardError("bad-argument", "placements do not say how many dims the tensor has; ndim must be given")
        return placements.sharding_of(record, mesh, ndim)
    return Sharding.of_spec(mesh, record, ndim)


def _of_xla(record: XlaRecord, mesh: Mesh | None, ndim: int | None) -> Sharding:
    """XLA counts positions in the mesh; once the text is read on them, the devices come back."""
    rank = None if record.is_tiled else ndim
    if mesh is None or mesh.is_empty:
        return xla.read_sharding(record.text, None, rank)
    of_positions = xla.read_sharding(record.text, Mesh(mesh.axes) if mesh.axes else None, rank)
    if ndim is not None and of_positions.ndim not in (None, ndim):
        raise ReshardError("rank-mismatch", f"{record.text} has {of_positions.ndim} dims, the tensor has {ndim}")
    if of_positions.mesh.is_empty:  # the text was read without a mesh, and names no device
        return Sharding(mesh, ())
    ids = tuple(mesh.device_at(position) for position in of_positions.mesh.devices)
    return replace(of_positions, mesh=Mesh(of_positions.mesh.axes, ids))
