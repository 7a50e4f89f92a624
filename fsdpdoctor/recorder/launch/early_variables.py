"""Scripts that set variables before they import torch, which reads some only then:
how many threads it has, what it logs, how closely it looks at collectives.

Of such a script the recording begins with its own import of torch, of others before
them.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fsdpdoctor.recorder.patching import unseen

_SETTERS = frozenset({"setdefault", "update", "putenv"})


def sets_variables(source: str | bytes) -> bool:
    """Whether a script sets a variable of its environment and imports torch only then,
    as far as its text shows.
    """
    text = source if isinstance(source, bytes) else source.encode(errors="replace")
    if b"environ" not in text and b"putenv" not in text:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come as it is compiled
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # it will not run, or says too much at once
    for statement in tree.body:
        if _imports_torch(statement):
            return False
        if any(_sets(node) for node in ast.walk(statement)):
            return True
    return False


def _imports_torch(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import):
        return any(one.name.partition(".")[0] == "torch" for one in statement.names)
    named = statement.module if isinstance(statement, ast.ImportFrom) else None
    return (named or "").partition(".")[0] == "torch"


def _sets(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        called = node.func
        name = getattr(called, "attr", getattr(called, "id", None))
        of = getattr(called, "value", None)
        return name in _SETTERS and (name == "putenv" or _is_environ(of))
    stored = isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)
    return stored and _is_environ(getattr(node, "value", None))


def _is_environ(node: Any) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) == "environ"


@contextlib.contextmanager
def once_imported(name: str, act: Callable[[], None]) -> Iterator[None]:
    """Act right after a module's first import, within that import; never where it is
    not imported while this lasts.
    """
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.remove()


class _Finder:
    """Finds the module as the others do, and hears of its end."""

    def __init__(self, name: str, act: Callable[[], None]) -> None:
        self._name = name
        self._act = act
        self._asking = False  # the other finders

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """None, of all other modules and where nobody else finds this one."""
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asking = False
        if spec is not None and hasattr(spec.loader, "exec_module"):
            self._hear(spec.loader)
        return spec

    def remove(self) -> None:
        """Find nothing any more."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def _hear(self, loader: Any) -> None:
        load, remove, act = loader.exec_module, self.remove, self._act

        @unseen
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            remove()
            act()

        loader.exec_module = exec_module
