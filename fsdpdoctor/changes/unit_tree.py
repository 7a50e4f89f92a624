"""UnitTree: the units of a model as `fully_shard` made them, by name and in order.

A run's units and a simulated step come to the same tree, so that findings and
what-if have their code from one writer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fsdpdoctor.plan_file import module_names
from fsdpdoctor.schema import UNKNOWN, BlockSpec, UnitSpec

_EMBEDDING = re.compile(
    r"(^|[._])(\w*embed\w*|[a-z]*emb|wte|wpe)([._]|$)", re.IGNORECASE
)
_HEAD = re.compile(
    r"(^|[._])(lm_head|head|output|embed_out|unembed\w*)([._]|$)", re.IGNORECASE
)


def is_head(param: str) -> bool:
    """Whether a parameter's name is one that models give their last table."""
    return _HEAD.search(param) is not None


def is_embedding(param: str) -> bool:
    """Whether it is one for their first tables: embed_tokens, tok_embeddings, wte."""
    return _EMBEDDING.search(param) is not None and not is_head(param)


def first_path(fqn: str) -> str:
    """A module path of a unit: the first of a grouped one, "" of the root."""
    return module_names(fqn)[0]


def inside(fqn: str, other: str) -> bool:
    """Whether a unit's module lies within another unit's."""
    if fqn == other:
        return False
    around = first_path(other)
    return not around or f"{first_path(fqn)}.".startswith(f"{around}.")


@lru_cache(maxsize=64)  # a search asks it of the same few trees thousands of times
def backward_order(names: tuple[str, ...]) -> tuple[int, ...]:
    """Places of units, given in the order of their forwards, as backwards begin.

    The reverse of forward, but a parent before its children: its output's gradient
    comes first.
    """
    paths = [first_path(name) for name in names]
    of_path: dict[str, list[int]] = {}
    for at, path in enumerate(paths):
        of_path.setdefault(path, []).append(at)
    result: dict[int, None] = {}
    for at in reversed(range(len(names))):
        near = [other for path in _around(paths[at]) for other in of_path.get(path, ())]
        for other in sorted(near):
            if names[other] != names[at]:
                result.setdefault(other)
        result.setdefault(at)
    return tuple(result)


def _around(path: str) -> set[str]:
    """A module's path and those that it lies within, the model's own too."""
    return {"", path} | {path[:at] for at, sign in enumerate(path) if sign == "."}


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUnit:
    """One unit, and what `fully_shard` was told of it. None: not known, or not told."""

    fqn: str
    module_class: str = ""
    is_root: bool = False
    tree: int = 0
    model: int = 0
    reshard_after_forward: bool | int | None = None  # as it acts
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    offload: str | None = None  # "cpu", "cpu-pinned"
    mesh: str | None = None  # in words, as in `UnitSpec`
    forward_prefetch: tuple[str, ...] = ()  # units
    backward_prefetch: tuple[str, ...] = ()
    idle: bool = False  # it never ran: it stays a unit, and is on no list

    @property
    def modules(self) -> tuple[str, ...]:
        """Paths of its modules."""
        return module_names(self.fqn)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTree:
    """Units in the order of their forwards, parents before children."""

    units: tuple[TreeUnit, ...] = ()
    device: str = "cuda"
    world_size: int = UNKNOWN
    backward: tuple[str, ...] = ()  # as backwards begin; empty: by nesting
    not_shown: tuple[str, ...] = ()  # of calls of `fully_shard`, by a trace
    called: str | None = None  # what `model` is, where a process has several

    def __contains__(self, fqn: str) -> bool:
        return any(unit.fqn == fqn for unit in self.units)

    def named(self, fqn: str) -> TreeUnit | None:
        """One unit, None where there is none of that name."""
        return next((unit for unit in self.units if unit.fqn == fqn), None)

    @property
    def root(self) -> TreeUnit | None:
        """The model's own unit; None where it holds no parameters."""
        return next((u for u in self.units if u.is_root and u.modules == ("",)), None)

    @property
    def trees(self) -> Iterator[UnitTree]:
        """Each root's units apart: FSDP2 gathers none of one for another."""
        for number in dict.fromkeys(unit.tree for unit in self.units):
            mine = tuple(unit for unit in self.units if unit.tree == number)
            yield replace(self, units=mine)

    @property
    def models(self) -> tuple[UnitTree, ...]:
        """Each model's units apart, where a run has several: names are its own."""
        numbers = dict.fromkeys(unit.model for unit in self.units)
        if len(numbers) > 1:
            return tuple(self.of_model(number) for number in numbers)
        apart: list[UnitTree] = []
        together: list[TreeUnit] = []
        several = list(self.trees)
        for tree in several:
            if len(several) > 1 and tree.root is not None:
                apart.append(tree)
            else:
                together += tree.units
        if together:
            apart.append(replace(self, units=tuple(together)))
        return tuple(apart)

    def of_model(self, number: int) -> UnitTree:
        """One model's units."""
        mine = tuple(unit for unit in self.units if unit.model == number)
        return replace(self, units=mine)

    @property
    def root_paths(self) -> tuple[str, ...] | None:
        """Where each root is in the model; None where that cannot be told."""
        several = list(self.trees)
        if len(several) < 2:
            return ("",)
        roots = [
            unit.modules[0] for tree in several for unit in tree.units if unit.is_root
        ]
        return tuple(roots) if len(roots) == len(several) else None

    def order(self, phase: str) -> tuple[TreeUnit, ...]:
        """Units as one phase needs them; those that never ran in none."""
        units = tuple(unit for unit in self.units if not unit.idle)
        if phase == "forward":
            return units
        by_name = {unit.fqn: unit for unit in units}
        if len(self.backward) == len(units) and set(self.backward) == set(by_name):
            return tuple(by_name[name] for name in self.backward)
        return tuple(units[at] for at in backward_order(tuple(by_name)))

    def with_units(self, new: Sequence[TreeUnit], *without: str) -> UnitTree:
        """More units, below those of the root and before all others."""
        kept = [unit for unit in self.units if unit.fqn not in without]
        roots = [unit for unit in kept if unit.is_root]
        others = [unit for unit in kept if not unit.is_root]
        return replace(self, units=(*roots, *new, *others))


def block_units(block: BlockSpec, like: TreeUnit) -> list[TreeUnit]:
    """Each of some repeated blocks as a unit, told what another one was told."""
    prefix = f"{block.container}." if block.container else ""
    return [
        below(like, f"{prefix}{at}", module_class=block.module_class)
        for at in range(block.count)
    ]


def below(
    like: TreeUnit, fqn: str, *, module_class: str = "", reshard: bool = True
) -> TreeUnit:
    """A unit of its own, out of another one's parameters and told the same."""
    return replace(
        like,
        fqn=fqn,
        module_class=module_class,
        is_root=False,
        reshard_after_forward=reshard,
        forward_prefetch=(),
        backward_prefetch=(),
    )


def unit_of(spec: UnitSpec, names: Sequence[str] = ()) -> TreeUnit:
    """A recorded unit. `names` are all units', by index, for its prefetch lists."""

    def known(targets: tuple[int, ...] | None) -> tuple[str, ...]:
        return tuple(names[at] for at in targets or () if at < len(names))

    return TreeUnit(
        fqn=spec.fqn,
        module_class=spec.module_class,
        is_root=spec.is_root,
        tree=spec.tree,
        model=spec.model,
        reshard_after_forward=spec.reshard_after_forward,
        param_dtype=spec.param_dtype,
        reduce_dtype=spec.reduce_dtype,
        offload=spec.offload,
        mesh=spec.mesh,
        forward_prefetch=known(spec.forward_prefetch),
        backward_prefetch=known(spec.backward_prefetch),
    )
