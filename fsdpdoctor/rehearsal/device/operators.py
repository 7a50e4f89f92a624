"""What is known of an operator before it is called."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

_aten: Any = torch.ops.aten


class Shape(Enum):
    """How an operator's results come about."""

    VIEW = auto()  # they share storage with an argument
    IN_PLACE = auto()  # they are arguments, or there are none
    NEW = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """An overload."""

    name: str
    shape: Shape
    returned: tuple[int | str, ...] = ()  # IN_PLACE: which arguments are returned
    changes_shape: bool = False
    writes_out: bool = False  # what it returns was given as `out`, and is not read
    guessed: bool = False  # a kernel of its own, which nobody prices


# Their schemas say that results are new; they are views.
_HIDDEN_VIEWS = {_aten._unsafe_view.default, _aten._reshape_alias.default}


# Operators of torch's own; a name that begins with one of these is one, too.
_TORCHS = ("aten", "prim", "fsdp", "_c10d", "c10d", "_dtensor", "quantized", "profiler")


def inspect(func: Any) -> Operator:
    """What is known of an overload."""
    found = _by_schema(func)
    theirs = not func.namespace.startswith(_TORCHS)
    guessed = theirs and func.overloadpacket not in flop_registry
    return replace(found, guessed=guessed)


def _by_schema(func: Any) -> Operator:
    schema = func._schema
    name = str(func).removesuffix(".default")
    returns = [r.alias_info for r in schema.returns]
    mutable = [
        (i if not a.kwarg_only else a.name, a.alias_info)
        for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    ]
    if mutable:
        changes = torch.Tag.inplace_view in func.tags or "resize" in name
        if not returns:
            return Operator(name=name, shape=Shape.IN_PLACE, changes_shape=changes)
        if all(a is not None and a.is_write for a in returns):
            returned = tuple(
                next(
                    where for where, info in mutable if info.before_set == a.before_set
                )
                for a in returns
                if a is not None
            )
            return Operator(
                name=name,
                shape=Shape.IN_PLACE,
                returned=returned,
                changes_shape=changes,
                writes_out=all(isinstance(where, str) for where in returned),
            )
    aliased = any(a is not None for a in returns)
    if aliased or func in _HIDDEN_VIEWS or name.startswith("fsdp.all_gather_copy_in"):
        return Operator(name=name, shape=Shape.VIEW)
    return Operator(name=name, shape=Shape.NEW)


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """All tensors among the arguments, in their order."""
    found = []
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, torch.Tensor):
            found.append(arg)
        elif isinstance(arg, list | tuple):
            found += [one for one in arg if isinstance(one, torch.Tensor)]
    return found


def flat_results(results: Any) -> list[torch.Tensor]:
    """All tensors among the results."""
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, list | tuple):
        return [t for one in results for t in flat_results(one)]
    return []


def mapped(args: Any, change: Any) -> Any:
    """Arguments with every tensor changed."""
    if isinstance(args, torch.Tensor):
        return change(args)
    if isinstance(args, list):
        return [mapped(arg, change) for arg in args]
    if isinstance(args, tuple):
        return tuple(mapped(arg, change) for arg in args)
    return args


def signature(args: Any) -> Any:
    """Arguments by what a result's shape can depend on; raises TypeError where one
    cannot be told.
    """
    if isinstance(args, torch.Tensor):
        return args.shape, args.stride(), args.dtype
    if isinstance(args, list | tuple):
        return tuple([signature(arg) for arg in args])
    if isinstance(args, float | bool | int):
        return type(args), args
    hash(args)
    return args
