"""Which micro-batch each pass of a step belongs to.

[Note: Micro-batches] A micro-batch is a backward pass of a model, and the forwards
with gradients that led to it. A pipeline's schedule runs several forwards before their
backwards, a preference loss two forwards before one: which it is shows only when the
step is over. So rows carry the number of the pass in which they were made, and the
passes are given their micro-batches at the step's end.

Where a tree had as many forwards as backwards, the first forward belongs to the first
backward. Where it had more, forwards belong to the next backward, whichever it is.
A backward that no forward of its root led to (a loss taken in chunks, of a head called
by itself, and then the model's; two losses of one forward) goes on with the micro-batch
before.
Several models in one process (a pipeline's stages, a generator and a discriminator)
are counted each on its own: a backward through several of them is the latest
micro-batch of any.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from fsdpdoctor.recorder.patching import unasked
from fsdpdoctor.schema import UNKNOWN

Tree = int
"""Tells what is under one root from what is under another, within a step."""

NO_TREE: Tree = 0
"""That of a model without FSDP2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a forward was given."""

    tokens: int = UNKNOWN
    samples: int = UNKNOWN

    def __add__(self, other: Inputs) -> Inputs:
        return Inputs(
            tokens=_sum(self.tokens, other.tokens),
            samples=_sum(self.samples, other.samples),
        )


NO_INPUTS = Inputs()


def _sum(one: int, other: int) -> int:
    if one == UNKNOWN or other == UNKNOWN:
        return max(one, other)
    return one + other


def inputs_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Inputs:
    """Tokens are the elements of a two-dimensional integer input, samples its rows, or
    those of the first tensor.
    """
    first = first_tensor(args, kwargs)
    if first is None:
        return NO_INPUTS
    shape = _shape_of(first)
    words = len(shape) == 2 and _dtype_of(first) in (torch.int64, torch.int32)
    tokens = shape.numel() if words else UNKNOWN
    return Inputs(tokens=tokens, samples=int(shape[0]))


def length_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Of the second dimension of what a forward computes with, or of its only one."""
    first = first_tensor(args, kwargs)
    if first is None:
        return UNKNOWN
    shape = _shape_of(first)
    return shape[min(1, len(shape) - 1)]


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """What a forward computes with: `input_ids` where it is named so."""
    for value in (kwargs.get("input_ids"), *args, *kwargs.values()):
        if isinstance(value, torch.Tensor) and len(_shape_of(value)):
            return value
    return None


_base: Any = torch.Tensor
"""A class of the script's may answer in its own way, or refuse: it is not asked."""


def _shape_of(tensor: torch.Tensor) -> torch.Size:
    with unasked():
        shape: torch.Size = _base.size(tensor)
        return shape


def _dtype_of(tensor: torch.Tensor) -> torch.dtype:
    with unasked():
        dtype: torch.dtype = _base.dtype.__get__(tensor)
        return dtype


@dataclass(slots=True, kw_only=True)
class _Pass:
    """A root's forward with gradients, or a part's alone, or a backward."""

    number: int
    start_ns: int
    trees: set[Tree] = field(default_factory=set)
    backward: bool = False
    part: bool = False
    inputs: Inputs = NO_INPUTS
    end_ns: int = UNKNOWN
    aborted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """A micro-batch from its first forward to the end of its backward."""

    number: int  # of its backward pass
    start_ns: int
    end_ns: int
    aborted: bool


class MicroBatches:
    """The passes of the step that runs, and of what follows its last boundary."""

    def __init__(self) -> None:
        self._passes: list[_Pass] = []  # since the last boundary
        self._next = 0
        self._open: _Pass | None = None  # the backward that runs
        self._begun: Counter[tuple[Tree, bool]] = Counter()  # by tree and direction
        self._forwards: Counter[Tree] = Counter()  # by tree, up to the boundary
        self._backwards: Counter[Tree] = Counter()  # those that a forward led to
        self._of_pass: dict[int, int] = {}
        self._kept_from = 0  # earlier passes belong to steps that are written
        self.count = 0  # of the step, up to the boundary
        self.inputs = NO_INPUTS

    @property
    def last(self) -> int:
        """The number of the last pass."""
        return self._next - 1

    def forward(
        self, tree: Tree, start_ns: int, inputs: Inputs, *, part: bool = False
    ) -> tuple[int, int]:
        """A root's forward with gradients begins. The number of its pass, and how
        many of its tree came before in the step.
        """
        made = _Pass(
            number=self._take(),
            start_ns=start_ns,
            trees={tree},
            inputs=inputs,
            part=part,
        )
        self._passes.append(made)
        self._begun[tree, False] += 1
        return made.number, self._begun[tree, False] - 1

    def backward(self, tree: Tree, start_ns: int) -> tuple[int, int]:
        """A backward has come to a tree. Its numbers, as a forward's."""
        if self._open is None:
            self._open = _Pass(number=self._take(), start_ns=start_ns, backward=True)
            self._passes.append(self._open)
        if tree not in self._open.trees:
            self._open.trees.add(tree)
            self._begun[tree, True] += 1
        return self._open.number, self._begun[tree, True] - 1

    def after_backward(self) -> bool:
        """Whether the last pass since the boundary is a backward, and has its end."""
        last = self._passes[-1] if self._passes and self._open is None else None
        return last is not None and last.backward and not last.aborted

    def waiting(self) -> bool:
        """Whether a forward, or a backward's own end, is still to come."""
        if self._open is not None:
            return True
        return bool(self._passes) and not self._passes[-1].backward

    def backward_ended(self, end_ns: int, *, aborted: bool) -> None:
        """A backward is over, whether it came to a tree or not."""
        made, self._open = self._open, None
        if made is None:
            made = _Pass(number=self._take(), start_ns=end_ns, backward=True)
            made.trees.update(*(one.trees for one in self._since_backward()))
            self._passes.append(made)
        made.end_ns, made.aborted = end_ns, aborted

    def settle(self, last: int | None = None) -> list[Marker]:
        """A boundary, after the last pass of all or this one: give the passes since
        the boundary before their micro-batches.
        """
        cut = len(self._passes)
        if last is not None:
            cut = sum(one.number <= last for one in self._passes)
        passes, self._passes = self._passes[:cut], self._passes[cut:]
        self._open = None if last is None else self._open
        ended = [one for one in passes if one.backward]
        first = max(self._backwards.values(), default=0)
        for one in passes:
            self._count(one)
        starts: dict[int, int] = {}
        counted: set[int] = set()
        for one, backward in _pairs(passes):
            number = self._of_pass.get(backward, first)
            self._of_pass[one.number] = number
            starts.setdefault(backward, one.start_ns)
            if number not in counted:
                counted.add(number)
                self.inputs = self.inputs + one.inputs
        if passes:
            last = max(self._of_pass[one.number] for one in passes)
            self.count = max(self.count, last + 1)
        return [
            Marker(
                number=one.number,
                start_ns=starts.get(one.number, one.start_ns),
                end_ns=one.end_ns,
                aborted=one.aborted,
            )
            for one in ended
            if one.end_ns != UNKNOWN
        ]

    def _count(self, one: _Pass) -> None:
        """Take a pass in turn; a backward gets its micro-batch."""
        if not one.backward:
            self._forwards.update(() if one.part else one.trees)
            return
        for tree in one.trees:
            before = self._backwards[tree]
            if before == 0 or self._forwards[tree] > before:
                self._backwards[tree] += 1
        most = max((self._backwards[tree] for tree in one.trees), default=1)
        self._of_pass[one.number] = most - 1

    def step_ended(self) -> None:
        """The step ends at the last boundary; later passes are the next one's."""
        self._of_pass = {
            number: found
            for number, found in self._of_pass.items()
            if number >= self._kept_from
        }
        self._kept_from = self._passes[0].number if self._passes else self._next
        self._forwards.clear()
        self._backwards.clear()
        self._begun.clear()
        self.count, self.inputs = 0, NO_INPUTS

    def of_pass(self) -> dict[int, int]:
        """The micro-batches of passes, of this step's and of the one before."""
        return self._of_pass

    def _take(self) -> int:
        self._next += 1
        return self._next - 1

    def _since_backward(self) -> Iterator[_Pass]:
        for one in reversed(self._passes):
            if one.backward:
                return
            yield one


def _pairs(passes: list[_Pass]) -> Iterator[tuple[_Pass, int]]:
    """Each forward with the number of its backward, UNKNOWN where none followed."""
    forwards: dict[Tree, list[_Pass]] = defaultdict(list)
    backwards: dict[Tree, list[_Pass]] = defaultdict(list)
    for one in passes:
        for tree in one.trees:
            (backwards if one.backward else forwards)[tree].append(one)
    in_turn = {
        one.number: other.number
        for tree, mine in forwards.items()
        if len(mine) == len(backwards[tree])
        for one, other in zip(mine, backwards[tree], strict=True)
        if other.number > one.number
    }
    following = UNKNOWN
    found: list[tuple[_Pass, int]] = []
    for one in reversed(passes):
        if one.backward:
            following = one.number
        else:
            found.append((one, in_turn.get(one.number, following)))
    return reversed(found)
