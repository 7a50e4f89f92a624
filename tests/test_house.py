"""The code can be read: short functions, small rooms, and no way back up."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = (ROOT / "fsdpdoctor", ROOT / "dashboard" / "fsdpdoctor_dashboard")
TESTS = ROOT / "tests"

LONGEST_MODULE = 450
LONGEST_FUNCTION = 90
P95_FUNCTION = 32
MOST_ROOMS = 18  # modules on the package's top level
MOST_IN_A_FOLDER = 20
MOST_FLOORS = 14

ONE_FILE_A_RULE = {PACKAGES[0] / "detectors"}


def modules(*folders: Path, suffix: str = ".py") -> list[Path]:
    """All of their files in a language."""
    return sorted(path for folder in folders for path in folder.rglob(f"*{suffix}"))


class Function(NamedTuple):
    """A function, and how many lines it has from `def` on."""

    lines: int
    where: str


def functions(*folders: Path) -> list[Function]:
    """All functions and methods, by length."""
    found = []
    for path in modules(*folders):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                where = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
                found.append(Function(lines, where))
    return sorted(found)


def test_no_module_is_long() -> None:
    """Each has one subject, and fits into a head."""
    long = [
        f"{path.relative_to(ROOT)}: {lines}"
        for suffix in (".py", ".js")
        for path in modules(*PACKAGES, TESTS, suffix=suffix)
        if (lines := path.read_text(encoding="utf-8").count("\n")) > LONGEST_MODULE
    ]
    assert long == []


@pytest.mark.parametrize("folder", [*PACKAGES, TESTS], ids=lambda path: path.name)
def test_functions_fit_a_screen(folder: Path) -> None:
    """Nearly all of them without scrolling, none over two screens."""
    found = functions(folder)
    p95 = found[math.ceil(0.95 * len(found)) - 1]
    assert p95.lines <= P95_FUNCTION, p95
    assert found[-1].lines <= LONGEST_FUNCTION, found[-1]


def test_no_folder_is_crowded() -> None:
    """Whoever opens one sees at once what is there. The tests' folders mirror them."""
    crowded = {
        str(folder.relative_to(ROOT)): count
        for suffix in (".py", ".js")
        for folder in {path.parent for path in modules(*PACKAGES, suffix=suffix)}
        if folder not in ONE_FILE_A_RULE
        and (count := len(list(folder.glob(f"*{suffix}")))) > MOST_IN_A_FOLDER
    }
    assert crowded == {}
    assert len(list(PACKAGES[0].glob("*.py"))) <= MOST_ROOMS


def imports(path: Path) -> Iterator[str]:
    """What a module imports of ours when it is imported: not within a function, and
    not for type checkers alone.
    """
    todo: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                todo += node.orelse
                continue
            case ast.ImportFrom(module=str(module)):
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)
            case ast.Import():
                yield from (alias.name for alias in node.names)
        todo += ast.iter_child_nodes(node)


def module_graph() -> dict[str, set[str]]:
    """Which modules each module imports."""
    files = {}
    for path in modules(*PACKAGES):
        package = next(one for one in PACKAGES if path.is_relative_to(one))
        parts = path.relative_to(package.parent).with_suffix("").parts
        files[".".join(parts).removesuffix(".__init__")] = path
    return {
        name: {one for one in imports(path) if one in files and one != name}
        for name, path in files.items()
    }


def room(module: str) -> str:
    """The top-level module or folder in which it lies."""
    first, *rest = module.split(".")
    return ".".join((first, *rest[:1]))


def floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """How many stand below each; raises CycleError where two stand on each other."""
    found: dict[str, int] = {}
    for one in TopologicalSorter(graph).static_order():
        found[one] = 1 + max((found[below] for below in graph.get(one, ())), default=0)
    return found


def test_no_module_is_imported_by_what_it_imports() -> None:
    """The imports that run at import make no circle, module by module. A folder's
    `__init__` is above its modules: naming the folder of one asks only for the module.
    """
    graph = module_graph()
    for name, below in graph.items():
        below -= {one for one in below if any(x.startswith(f"{one}.") for x in below)}
        below -= {one for one in below if name.startswith(f"{one}.")}
    assert floors(graph)


def test_rooms_stand_on_few_floors() -> None:
    """No room stands on one that stands on it, and the way up is short."""
    rooms: dict[str, set[str]] = {}
    for name, below in module_graph().items():
        mine = rooms.setdefault(room(name), set())
        mine |= {room(one) for one in below} - {room(name)}
    roots = {package.name for package in PACKAGES}
    for below in rooms.values():  # the package itself is imported by all, and empty
        below -= roots
    assert max(floors(rooms).values()) <= MOST_FLOORS
