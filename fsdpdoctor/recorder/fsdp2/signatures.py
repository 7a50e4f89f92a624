"""The names that FSDP2's modules define, read from their sources: functions and methods
with their parameters, and what objects of a class are given.

An object's attributes are nowhere on its class, so asking the class is not enough. And
a torch that is not installed can be asked as well.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = "torch.distributed.fsdp._fully_shard"
MODULES = (
    "_fsdp_collectives",
    "_fsdp_common",
    "_fsdp_param",
    "_fsdp_param_group",
    "_fsdp_state",
    "_fully_shard",
)

Signatures = dict[str, tuple[str, ...]]
"""What is defined, as `foreach_reduce` or `FSDPState._is_root`, to its parameters; of
what is not called, none.
"""


@functools.cache
def installed() -> Signatures:
    """Of the torch that is installed; nothing where its sources are not there."""
    found: dict[str, str] = {}
    for name in MODULES:
        try:
            spec = importlib.util.find_spec(f"{PACKAGE}.{name}")
            if spec is not None and spec.origin is not None:
                found[name] = Path(spec.origin).read_text(encoding="utf-8")
        except (ImportError, OSError, ValueError):
            continue
    return signatures_of(found)


def signatures_of(sources: Mapping[str, str]) -> Signatures:
    """Of some modules' sources, by module name; one that does not parse has none."""
    classes: dict[str, ast.ClassDef] = {}
    found: Signatures = {}
    for source in sources.values():
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name] = node
                continue
            for name, parameters in _defined(node):
                # What another module imports by name is what this one defines.
                found[name] = parameters or found.get(name, ())
    for name, defined in classes.items():
        found[name] = ()
        for member, parameters in _members(defined, classes):
            found.setdefault(f"{name}.{member}", parameters)
    return found


def _defined(node: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        given = node.args
        yield node.name, tuple(a.arg for a in (*given.posonlyargs, *given.args))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, ()
    elif isinstance(node, ast.Assign):
        yield from ((t.id, ()) for t in node.targets if isinstance(t, ast.Name))
    elif isinstance(node, ast.Import | ast.ImportFrom):
        yield from (((a.asname or a.name), ()) for a in node.names)


def _members(
    node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Its own, then what its methods give to `self`, then its bases'."""
    for statement in node.body:
        yield from _defined(statement)
    for child in ast.walk(node):
        if (
            isinstance(child, ast.Attribute)
            and isinstance(child.ctx, ast.Store)
            and isinstance(child.value, ast.Name)
            and child.value.id == "self"
        ):
            yield child.attr, ()
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes:
            yield from _members(classes[base.id], classes)
