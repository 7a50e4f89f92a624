"""Which device work is communication, and what is known of each collective."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fsdpdoctor.importers.kineto.attribution import Context, comm_args_of
from fsdpdoctor.importers.kineto.kernels import collective_kind, says_operation
from fsdpdoctor.importers.kineto.launches import DeviceWork
from fsdpdoctor.importers.kineto.process_groups import collective_bytes
from fsdpdoctor.importers.libraries import library_of
from fsdpdoctor.importers.reader.trace_file import (
    Bools,
    Cat,
    CommArgs,
    Int64s,
    starts_with,
)
from fsdpdoctor.schema import UNKNOWN, Kind, numbered

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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Communication:
    """What says that device work is communication: arguments, parents, names."""

    context: Context
    by_name: dict[int, bool]  # of the kernels asked about so far
    has_collective: Bools  # by its arguments' place in TraceFile.comms
    direct: Bools  # of the host's events around the launch

    @classmethod
    def of(cls, context: Context) -> Communication:
        trace, ops = context.trace, context.comm_ops
        around = [trace.names[name] for name in trace.events.name[ops.rows].tolist()]
        return cls(
            context=context,
            by_name={},
            # Both end with what UNKNOWN finds.
            has_collective=np.array(
                [*(args.collective is not None for args in trace.comms), False]
            ),
            direct=np.array([*starts_with(around, DIRECT_PARENTS), False]),
        )

    def among(self, work: DeviceWork) -> Bools:
        """Which device work is communication."""
        events = self.context.trace.events
        kernels = events.cat[work.event] == Cat.KERNEL
        by_args = self.has_collective[events.comm[work.event]]
        parent = self.context.comm_ops.innermost(work.tid, work.launched_ns)
        named = self._named(events.name[work.event])
        found: Bools = kernels & (named | by_args | self.direct[parent])
        return found

    def _named(self, name: npt.NDArray[np.int32]) -> Bools:
        ids, which = numbered(name)
        for one in ids.tolist():
            if one not in self.by_name:
                text = self.context.trace.names[one]
                self.by_name[one] = library_of(text) is not None
        verdicts = [self.by_name[one] for one in ids.tolist()]
        return np.array(verdicts, dtype=np.bool_)[which]


def collectives_of(
    context: Context, work: DeviceWork, which: Int64s
) -> list[Collective]:
    """What is known of each communication, in the order given."""
    parents = context.comm_ops.innermost(work.tid[which], work.launched_ns[which])
    return [
        _collective(context, row, parent)
        for row, parent in zip(
            work.event[which].tolist(), parents.tolist(), strict=True
        )
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
