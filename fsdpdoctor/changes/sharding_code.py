"""The `fully_shard` calls that make a model's units, with what they were told before.

A call that leaves out the script's own `mp_policy` or mesh trains on, in another
dtype or without its replicas: what a record shows of them is written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from fsdpdoctor.changes.quoting import name_list, quoted, submodule, together
from fsdpdoctor.changes.unit_tree import TreeUnit, UnitTree, inside
from fsdpdoctor.schema import ROOT, UNKNOWN

REPLACES = "# Instead of your own fully_shard calls."
"""Above code that does not come after sharding but is the sharding."""

INSERTS = "# Before the fully_shard(model) that is there already."
"""Above calls that come between the script's own."""

MOST_SPOKEN = 8
"""Units that a comment names one by one."""

_SHARDS = "# `model` is your plain model; its optimizer is built afterwards."

_REST = "# Add your own calls' other arguments, which a record does not show."

_ADD = "# Add what they are told: without it the model trains on, in another way."

_LAST = """\
# `model` is your whole model, not the part that fully_shard() was called on until now.
# After its parts, before the optimizer is built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What calls of `fully_shard` have in common, and what it takes to say it."""

    imports: tuple[str, ...] = ()
    fsdp: tuple[str, ...] = ()  # names of torch.distributed.fsdp
    before: tuple[str, ...] = ()
    config: tuple[str, ...] = ()  # entries of a dict
    each: bool = False  # dtypes differ: each call has its own policy


def dimensions(mesh: str | None) -> list[tuple[str | None, int]]:
    """Names and sizes of a mesh in words: `(replicate=2, shard=4)` or `(2, 4)`."""
    result: list[tuple[str | None, int]] = []
    for part in (mesh or "").strip("()").split(","):
        name, _, length = part.strip().rpartition("=")
        if length.isdecimal():
            result.append((name or None, int(length)))
    return result


def mesh_lines(device: str, sizes: Sequence[int], names: Sequence[str]) -> list[str]:
    """Make a mesh, as `mesh`. ROCm's devices are `cuda` to torch."""
    device = "cuda" if device == "rocm" else device
    lengths = ", ".join(map(str, sizes))
    called = ", ".join(map(quoted, names))
    return [
        "mesh = init_device_mesh(",
        f"    {quoted(device)}, ({lengths}), mesh_dim_names=({called})",
        ")",
    ]


MESH_IMPORT = "from torch.distributed.device_mesh import init_device_mesh"


def mixed_precision(unit: TreeUnit) -> str | None:
    """A unit's policy as an expression, None where it has none."""
    given = [
        f"{name}=torch.{dtype}"
        for name, dtype in (
            ("param_dtype", unit.param_dtype),
            ("reduce_dtype", unit.reduce_dtype),
        )
        if dtype is not None and dtype.isidentifier()
    ]
    return f"MixedPrecisionPolicy({', '.join(given)})" if given else None


def arguments(units: Sequence[TreeUnit], tree: UnitTree) -> Arguments:
    """What the calls for some units are told beside their policy."""
    policies = {mixed_precision(unit) for unit in units}
    mixed = policies != {None}
    found = Arguments(
        imports=("import torch",) if mixed else (),
        fsdp=("MixedPrecisionPolicy",) if mixed else (),
        config=(f'"mp_policy": {policies.pop()}',)
        if mixed and len(policies) == 1
        else (),
        each=mixed and len(policies) > 1,
    )
    return _on_mesh(_offloaded(found, units), units, tree)


def _offloaded(known: Arguments, units: Sequence[TreeUnit]) -> Arguments:
    offload = {unit.offload for unit in units}
    if offload not in ({"cpu"}, {"cpu-pinned"}):
        return known
    pin = "" if "cpu-pinned" in offload else "pin_memory=False"
    return Arguments(
        imports=known.imports,
        fsdp=("CPUOffloadPolicy", *known.fsdp),
        config=(*known.config, f'"offload_policy": CPUOffloadPolicy({pin})'),
        each=known.each,
    )


def _on_mesh(known: Arguments, units: Sequence[TreeUnit], tree: UnitTree) -> Arguments:
    mesh = next((unit.mesh for unit in units), None)
    dims = dimensions(mesh)
    sizes = [length for _, length in dims]
    ranks = 1
    for length in sizes:
        ranks *= length
    whole = tree.world_size in (UNKNOWN, ranks)
    if not sizes or (len(sizes) == 1 and whole):
        return known  # what fully_shard takes by itself
    names = [name or "" for name, _ in dims]
    before: list[str] = []
    imports = known.imports
    entry = '"mesh": mesh'
    if whole:
        default = ("replicate", "shard")[-len(sizes) :]
        named = names if all(names) else default
        before = mesh_lines(tree.device, sizes, named)
        imports = (*imports, MESH_IMPORT)
    return Arguments(
        imports=imports,
        fsdp=known.fsdp,
        before=tuple(before),
        config=(*known.config, entry),
        each=known.each,
    )


def preamble(known: Arguments, *more: str) -> list[str]:
    """Imports. `more` are further names of torch.distributed.fsdp."""
    names = sorted({*known.fsdp, *more}, key=lambda name: (name.islower(), name))
    return [*known.imports, f"from torch.distributed.fsdp import {', '.join(names)}"]


def shard_calls(
    units: Sequence[TreeUnit], known: Arguments, config: bool
) -> Iterator[str]:
    """`fully_shard` for each unit, children before parents."""
    shared = "**config" if config else None
    inner = [unit for unit in units if unit.modules != ("",)]
    inner.sort(key=lambda unit: -unit.modules[0].count("."))
    for told, alike in groupby(inner, key=lambda unit: _told(unit, known, shared)):
        paths = [unit.modules for unit in alike]
        while paths:
            single = [path for (path,) in _leading_single(paths)]
            if len(single) > 2:
                yield f"for name in {name_list(single)}:"
                yield f"    fully_shard(model.get_submodule(name){told})"
                del paths[: len(single)]
                continue
            yield f"fully_shard({together(paths.pop(0))}{told})"
    for unit in units:
        if unit.modules == ("",):
            yield f"fully_shard({submodule('')}{_told(unit, known, shared)})"


def _leading_single(paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The first of some units, as long as they are of one module."""
    alike: list[tuple[str, ...]] = []
    for path in paths:
        if len(path) > 1:
            break
        alike.append(path)
    return alike


def _told(unit: TreeUnit, known: Arguments, shared: str | None) -> str:
    given = [shared] if shared else []
    if known.each and (mixed := mixed_precision(unit)) is not None:
        given.append(f"mp_policy={mixed}")
    policy = unit.reshard_after_forward
    # FSDP2 keeps the root gathered unless it is told otherwise, and no other unit.
    if type(policy) is int or policy not in (None, not unit.is_root):
        given.append(f"reshard_after_forward={policy}")
    return "".join(f", {text}" for text in given)


def sharding_code(before: UnitTree, after: UnitTree, *, anew: bool) -> list[str]:
    """Calls that make `before` into `after`: more of them, or all `anew`."""
    were, are = ({unit.fqn for unit in tree.units} for tree in (before, after))
    new = [unit for unit in after.units if unit.fqn not in were]
    lost = [unit for unit in before.units if unit.fqn not in are]
    anew = anew or any(not unit.is_root for unit in lost)
    units = after.units if anew else new
    known = arguments(units, after)
    where = _where(before, units, anew)
    if before.not_shown:
        rest = f"# A trace does not show your calls' {', '.join(before.not_shown)}."
        where = [f"{rest}\n{_ADD}" if line == _REST else line for line in where]
    lines = [*preamble(known, "fully_shard"), "", *where, *known.before]
    if known.config:
        lines.append(f"config = {{{', '.join(known.config)}}}")
    lines += shard_calls(units, known, config=bool(known.config))
    if anew and after.root is None:
        shared = ", **config" if known.config else ""
        lines.append(f"fully_shard(model{shared})")
    return lines


def _spoken(fqns: Sequence[str]) -> str:
    """Names of units on one line: many are the first and the last of them."""
    shown = [quoted(fqn) for fqn in fqns]
    if len(shown) <= MOST_SPOKEN:
        return ", ".join(shown)
    return f"{shown[0]}, {shown[1]} ... {shown[-1]} ({len(shown)} of them)"


def _where(before: UnitTree, units: Sequence[TreeUnit], anew: bool) -> list[str]:
    if not before.units:
        return [_SHARDS]
    if anew:
        inner = [unit.fqn for unit in before.units if not unit.is_root]
        calls = _spoken(inner) if inner else "none but the model's"
        return [REPLACES, f"# They made units of: {calls}, and the model.", _REST]
    around = [
        other.modules[0]
        for other in before.units
        if not other.is_root and any(inside(unit.fqn, other.fqn) for unit in units)
    ]
    if around:
        return [f"# Before the fully_shard call for {quoted(around[0])}.", _REST]
    return [INSERTS, _REST]


def whole_code(like: TreeUnit, tree: UnitTree) -> str:
    """One more `fully_shard` around all others, told what they are told."""
    root = replace(like, fqn=ROOT, is_root=True, reshard_after_forward=None)
    known = arguments([root], tree)
    lines = [*preamble(known, "fully_shard"), "", _LAST, *known.before]
    if known.config:
        lines.append(f"config = {{{', '.join(known.config)}}}")
    return "\n".join([*lines, *shard_calls([root], known, config=bool(known.config))])
