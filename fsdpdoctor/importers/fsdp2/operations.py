"""Joins FSDP2's labels to unshards and reductions: who issued them, for which pass."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.importers.fsdp2.label_tree import LabelSpan, LabelTree
from fsdpdoctor.importers.fsdp2.labels import PREFETCHES
from fsdpdoctor.importers.fsdp2.passes import Passes
from fsdpdoctor.schema import UNKNOWN, Flag, Hook, Phase

HOOKS = (Hook.PRE_FORWARD, Hook.PRE_BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One unshard or one reduction. `op` is what its spans carry."""

    op: int  # index of its all_gather or post_backward_reduce label
    unit: int
    by_unit: int
    phase: Phase
    flags: Flag
    micro_batch: int  # counted over the trace
    span: LabelSpan
    copy_out: LabelSpan | None = None  # of an unshard


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operations:
    """Every operation of a trace, and the one that each label belongs to."""

    by_op: dict[int, Operation]
    of_label: dict[int, int]  # label index (all_gather, copy-out, reduce) to op


def find_operations(tree: LabelTree, passes: Passes) -> Operations:
    """Read the operations off the labels."""
    by_op: dict[int, Operation] = {}
    of_label: dict[int, int] = {}
    copied = _copy_outs(tree)
    hooks = tree.of(*HOOKS)
    starts = np.array([span.start_ns for span in tree.spans], dtype=np.int64)
    passed = passes.at(starts).tolist()
    for index, (span, at) in enumerate(zip(tree.spans, passed, strict=True)):
        if span.label == Hook.ALL_GATHER:
            copy_out = copied.get(index)
            by_op[index] = _unshard(tree, passes, hooks, index, at, copy_out)
            if copy_out is not None:
                of_label[copy_out] = index
        elif span.label == Hook.POST_BACKWARD_REDUCE:
            by_op[index] = Operation(
                op=index,
                unit=span.unit,
                by_unit=span.unit,
                phase=Phase.BACKWARD,
                flags=Flag.NONE,
                micro_batch=int(passes.micro_batch[at]) if at >= 0 else UNKNOWN,
                span=span,
            )
        else:
            continue
        of_label[index] = index
    return Operations(by_op=by_op, of_label=of_label)


def _copy_outs(tree: LabelTree) -> dict[int, int]:
    """The copy-out label of each all-gather label: its unit's next one."""
    pending: dict[int, int] = {}
    found: dict[int, int] = {}
    for index in tree.of(Hook.ALL_GATHER, Hook.ALL_GATHER_COPY_OUT):
        span = tree.spans[index]
        if span.label == Hook.ALL_GATHER:
            pending[span.unit] = index
        elif span.unit in pending:
            found[pending.pop(span.unit)] = index
    return found


def _unshard(
    tree: LabelTree,
    passes: Passes,
    hooks: Sequence[int],
    index: int,
    at: int,
    copy_out: int | None,
) -> Operation:
    """`at`: which of the passes was going on, or UNKNOWN."""
    span = tree.spans[index]
    prefetch = tree.enclosing(index, PREFETCHES)
    hook = tree.enclosing(index, HOOKS)
    phase = Phase(int(passes.phase[at])) if at >= 0 else Phase.OTHER
    flags = Flag.NONE
    if prefetch is not None:
        if hook is None:  # explicit prefetches are issued right after the unit's hook
            hook = _last_hook(tree, hooks, prefetch)
        backward = prefetch.label == Hook.BACKWARD_PREFETCH
        flags = Flag.BACKWARD_PREFETCH if backward else Flag.FORWARD_PREFETCH
        in_backward = backward or phase == Phase.BACKWARD
        phase = Phase.BACKWARD if in_backward else Phase.FORWARD
        recompute = in_backward and not backward
    elif hook is None:
        flags, recompute = Flag.MANUAL, False
    else:
        forward = hook.label == Hook.PRE_FORWARD
        recompute = forward and phase == Phase.BACKWARD
        phase = Phase.FORWARD if forward and not recompute else Phase.BACKWARD
    return Operation(
        op=index,
        unit=span.unit,
        by_unit=hook.unit if hook is not None else UNKNOWN,
        phase=phase,
        flags=flags | (Flag.RECOMPUTE if recompute else Flag.NONE),
        micro_batch=int(passes.micro_batch[at]) if at >= 0 else UNKNOWN,
        span=span,
        copy_out=tree.spans[copy_out] if copy_out is not None else None,
    )


def _last_hook(
    tree: LabelTree, hooks: Sequence[int], prefetch: LabelSpan
) -> LabelSpan | None:
    at = bisect_right(hooks, prefetch.start_ns, key=lambda i: tree.spans[i].start_ns)
    for index in reversed(hooks[:at]):
        if tree.spans[index].tid == prefetch.tid:
            return tree.spans[index]
    return None
