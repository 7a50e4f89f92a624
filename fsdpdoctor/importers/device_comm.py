"""Which device work is communication, and what is known of each collective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.context import Context, comm_args_of
from fsdpdoctor.importers.groups import collective_bytes
from fsdpdoctor.importers.kernels import (
    backend_of,
    collective_kind,
    flags_by_name,
    says_operation,
)
from fsdpdoctor.importers.launches import DeviceWork
from fsdpdoctor.importers.trace_events import Cat, CommArgs, Int64s
from fsdpdoctor.schema import UNKNOWN, Kind

DIRECT_PARENTS = ("record_param_comms", "nccl:", "hccl:", "ccl:")
"""Host events inside which only the communication library launches kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """What is known of one collective on the device."""

    kind: Kind
    said_by: str  # the text that names it
    args: CommArgs | None
    group: int
    seq: int  # as the trace says it, or UNKNOWN

    @property
    def bytes(self) -> int:
        return collective_bytes(self.kind, self.args)


def communication(context: Context, work: DeviceWork) -> npt.NDArray[np.bool_]:
    """Which device work is communication: by arguments, then parent, then name."""
    trace = context.trace
    events = trace.events
    kernels = events.cat[work.rows] == Cat.KERNEL
    names = events.name[work.rows]
    by_name = flags_by_name(trace.names, names, backend_of)
    has_collective = np.array(
        [args.collective is not None for args in trace.comms] + [False], dtype=np.bool_
    )
    by_args = has_collective[events.comm[work.rows]]
    ops = context.comm_ops
    parent = ops.innermost(work.tid, work.launched_ns)
    direct = np.array(
        [
            trace.names[name].startswith(DIRECT_PARENTS)
            for name in events.name[ops.rows].tolist()
        ]
        + [False],
        dtype=np.bool_,
    )
    found: npt.NDArray[np.bool_] = kernels & (by_name | by_args | direct[parent])
    return found


def collectives_of(
    context: Context, work: DeviceWork, which: Int64s
) -> list[Collective]:
    """What is known of each communication, in the order given."""
    parents = context.comm_ops.innermost(work.tid[which], work.launched_ns[which])
    return [
        _collective(context, int(row), int(parent))
        for row, parent in zip(work.rows[which], parents, strict=True)
    ]


def _collective(context: Context, row: int, parent: int) -> Collective:
    trace = context.trace
    own = comm_args_of(trace, row)
    described, texts = own, [own.collective] if own and own.collective else []
    seq = int(trace.events.seq[row])
    while parent != UNKNOWN:
        op = int(context.comm_ops.rows[parent])
        args = comm_args_of(trace, op)
        if args is not None and args.collective is not None:
            texts.append(args.collective)
            if described is None or described.collective is None:
                described, seq = args, int(trace.events.seq[op])
        texts.append(trace.names[int(trace.events.name[op])])
        if described is None and args is not None and args.dims is not None:
            described = args
        parent = int(context.comm_ops.parents[parent])
    texts.append(trace.names[int(trace.events.name[row])])
    said_by = next((text for text in texts if says_operation(text)), texts[-1])
    return Collective(
        kind=collective_kind(said_by),
        said_by=said_by,
        args=described,
        group=context.groups.id_of(described),
        seq=seq,
    )
