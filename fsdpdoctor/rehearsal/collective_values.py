"""What a collective leaves in its tensors, where every rank is a copy of this one.

A function each: of the group (its `rank()` and `size()`), the outputs, the inputs and
the options. Methods of a process group that differ only in how they nest tensors share
one; `outputs` and `inputs` are as torch.distributed hands them over.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

Tensors = Any  # a tensor, a list of them, or a list of lists: by method
Parts = Sequence[torch.Tensor]
Lists = Sequence[Parts]


def flat(tensors: Tensors) -> list[torch.Tensor]:
    """All tensors, in their order."""
    if isinstance(tensors, torch.Tensor):
        return [tensors]
    return [tensor for part in tensors for tensor in flat(part)]


def nothing(group: Any, outputs: Tensors, inputs: Tensors, opts: Any) -> None:
    """A broadcast, a message sent: the root's value is taken to be this rank's."""


def zeros(group: Any, outputs: Tensors, inputs: Tensors, opts: Any) -> None:
    """Another rank's message cannot be known."""
    for output in flat(outputs):
        output.detach().zero_()


def gather_slots(group: Any, outputs: Tensors, inputs: Tensors, opts: Any) -> None:
    """This rank's part into every slot of an output."""
    for output, part in zip(flat(outputs), flat(inputs), strict=True):
        _fill_slots(group, output, part)


def gather_lists(group: Any, outputs: Lists, inputs: Parts, opts: Any) -> None:
    """This rank's tensor in every place of its list."""
    for row, part in zip(outputs, inputs, strict=True):
        for output in row:
            _copy(output, part)


def gather_by_rank(group: Any, outputs: Lists, inputs: Parts, opts: Any) -> None:
    """This rank's tensors in the list of each rank."""
    for row in outputs:
        for output, part in zip(row, inputs, strict=True):
            _copy(output, part)


def gather_to_root(group: Any, outputs: Lists, inputs: Parts, opts: Any) -> None:
    """As `gather_lists` where this rank is the root; else there is nothing to fill."""
    for output in flat(outputs):
        _copy(output, inputs[0])


def reduce_chunks(group: Any, outputs: Tensors, inputs: Tensors, opts: Any) -> None:
    """This rank's chunk, as every rank has it."""
    for output, whole in zip(flat(outputs), flat(inputs), strict=True):
        if output.numel():
            chunks = whole.detach().reshape(group.size(), -1)
            _copy(output, chunks[group.rank()].view(output.shape))
            _times_ranks(group, output, opts)


def reduce_lists(group: Any, outputs: Parts, inputs: Lists, opts: Any) -> None:
    """As `reduce_chunks`, of lists."""
    for output, row in zip(outputs, inputs, strict=True):
        _copy(output, row[group.rank()])
        _times_ranks(group, output, opts)


def reduce_in_place(group: Any, outputs: Tensors, inputs: Tensors, opts: Any) -> None:
    """N times this rank's value for a sum, the value itself otherwise."""
    for tensor in flat(outputs):
        _times_ranks(group, tensor, opts)


def scatter_from_root(group: Any, outputs: Parts, inputs: Lists, opts: Any) -> None:
    """This rank's part where it is the root, zeros where it cannot be known."""
    if not inputs:
        zeros(group, outputs, inputs, opts)
        return
    for i, output in enumerate(outputs):
        _copy(output, inputs[i][group.rank()])


def own_to_all(group: Any, outputs: Parts, inputs: Parts, opts: Any) -> None:
    """What this rank would send itself, from everyone."""
    for output in outputs:
        _copy_repeating(output, inputs[group.rank()])


def own_rows(
    group: Any, outputs: torch.Tensor, inputs: torch.Tensor, opts: Any
) -> None:
    """This rank's own rows, repeated where more are expected."""
    _copy_repeating(outputs, inputs)


def _fill_slots(group: Any, output: torch.Tensor, part: torch.Tensor) -> None:
    if output.numel() == 0:
        return
    rank = group.rank()
    slots = output.detach().view(group.size(), -1)
    part = part.detach().reshape(1, -1)
    # FSDP2's input is a view of its own slot: a copy onto itself is refused.
    if slots[rank].data_ptr() != part.data_ptr():
        slots[rank].copy_(part[0])
    slots[:rank].copy_(part)
    slots[rank + 1 :].copy_(part)


def _times_ranks(group: Any, tensor: torch.Tensor, opts: Any) -> None:
    if getattr(opts, "reduceOp", None) == dist.ReduceOp.SUM:
        tensor.detach().mul_(group.size())


def _copy(output: torch.Tensor, part: torch.Tensor) -> None:
    if output.data_ptr() != part.data_ptr():
        output.detach().copy_(part.detach().reshape(output.shape))


def _copy_repeating(output: torch.Tensor, part: torch.Tensor) -> None:
    to, source = output.detach().view(-1), part.detach().reshape(-1)
    if source.numel() == 0:
        to.zero_()
        return
    times = -(-to.numel() // source.numel())
    to.copy_(source.repeat(times)[: to.numel()])
