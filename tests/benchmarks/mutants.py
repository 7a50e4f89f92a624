"""Mutation testing: whether some test fails when a line of these modules is wrong.

    python -m tests.benchmarks.mutants                      # all
    python -m tests.benchmarks.mutants intervals --most 40  # of one subject, a sample

Each mutant changes one operator, number or condition of a module, in a forked process
that has imported everything but this project, and runs the module's own tests there
until one fails. What survives is printed with its line; `mutation-results.md` says of
each why no test can tell it, or which test tells it since.

mutmut and cosmic-ray start an interpreter for each mutant, which with numpy, torch and
pytest costs more than the tests do.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import importlib.machinery
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

from tests.benchmarks.fuzz_scan import say

ROOT = Path(__file__).parents[2]
ANALYSIS, ENGINE = "fsdpdoctor/analysis", "fsdpdoctor/simulate/engine"

_MEASURES = (
    "tests/analysis",
    "tests/test_invariants.py",
    "tests/detectors/test_other_collectives.py",
)
_ENGINE = ("tests/simulate/engine",)
SUBJECTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "intervals": (("fsdpdoctor/intervals.py",), ("tests/test_intervals.py",)),
    "alignment": (
        (f"{ANALYSIS}/clock_alignment.py",),
        ("tests/analysis/test_clock_alignment.py",),
    ),
    "causes": ((f"{ANALYSIS}/stall_causes.py",), _MEASURES),
    "budget": ((f"{ANALYSIS}/step_budget.py",), _MEASURES),
    "simulator": (
        tuple(
            f"{ENGINE}/{name}.py"
            for name in ("timing", "schedule", "param_groups", "memory", "simulate")
        ),
        _ENGINE,
    ),
}
"""Subjects: their modules, and the tests that must tell a wrong one."""

_LOADED = "ignore::pytest.PytestAssertRewriteWarning"
"""Plugins of pytest are imported before it is run."""

LEAST_S = 20
SLOWER = 5
"""A mutant that takes so many times what all tests take is told: it does not end."""


Change = Callable[[ast.AST], str | None]
"""Changes a node that it knows, and says how."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of a module."""

    path: str
    line: int
    what: str
    node: int  # of `_code_in`
    change: Change

    def code(self) -> CodeType:
        """The module, changed."""
        place = ROOT / self.path
        tree = ast.parse(place.read_text())
        self.change(next(itertools.islice(_code_in(tree), self.node, None)))
        return compile(ast.fix_missing_locations(tree), str(place), "exec")

    def __str__(self) -> str:
        """Its place, what is changed, and the line as it was."""
        line = (ROOT / self.path).read_text().splitlines()[self.line - 1].strip()
        return f"{self.path}:{self.line}: {self.what}: {line}"


_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_CALLS = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum"}
_SIDES = {"left": "right", "right": "left"}


def _change_operator(node: ast.AST) -> str | None:
    for name in ("op", "ops"):
        old = getattr(node, name, None)
        one = old[0] if isinstance(old, list) else old
        new = _SWAPPED.get(type(one)) if isinstance(one, ast.AST) else None
        if new is not None:
            setattr(node, name, [new(), *old[1:]] if isinstance(old, list) else new())
            return f"{type(one).__name__} -> {new.__name__}"
    return None


def _change_value(node: ast.AST) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        node.value = not node.value
        return f"-> {node.value}"
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        node.value += 1
        return f"{node.value - 1} -> {node.value}"
    if isinstance(node, ast.Constant) and node.value in _SIDES:
        node.value = _SIDES[str(node.value)]
        return f"-> {node.value!r}"
    for name in ("id", "attr"):
        if (old := getattr(node, name, None)) in _CALLS:
            setattr(node, name, _CALLS[old])
            return f"{old} -> {_CALLS[old]}"
    return None


def _change_flow(node: ast.AST) -> str | None:
    if isinstance(node, ast.If | ast.IfExp | ast.While):
        node.test = ast.UnaryOp(op=ast.Not(), operand=node.test)
        return "condition turned round"
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        node.op = ast.UAdd()
        return "not dropped"
    return None


CHANGES: tuple[Change, ...] = (_change_operator, _change_value, _change_flow)


def mutants_of(path: str) -> Iterator[Mutant]:
    """Every change of a module's code; not of annotations, decorators, messages."""
    for at, node in enumerate(_code_in(ast.parse((ROOT / path).read_text()))):
        for change in CHANGES:
            what = change(copy.copy(node))
            if what is not None:
                line = getattr(node, "lineno", 1)
                yield Mutant(path=path, line=line, what=what, node=at, change=change)


_ASIDE = ("annotation", "returns", "decorator_list", "type_params", "bases", "keywords")


def _code_in(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that say what is done."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in _ASIDE and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            # `from x import y`, and the words of an error, have no test of their own.
            if isinstance(child, ast.AST) and not isinstance(
                child, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr
            ):
                yield from _code_in(child)


def run_tests(tests: Sequence[str], mutant: Mutant | None, limit_s: float) -> int:
    """The exit status of pytest over a mutant, in a process of its own."""
    child = os.fork()
    if not child:
        status = 70
        try:
            status = _in_child(tests, mutant, limit_s)
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def _in_child(tests: Sequence[str], mutant: Mutant | None, limit_s: float) -> int:
    seconds = int(limit_s) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    signal.alarm(60 * seconds)
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    if mutant is not None:
        _put(mutant)
    import pytest

    options = ("-x", "-q", "-p", "no:cacheprovider", "-W", _LOADED)
    return int(pytest.main([*options, *tests]))


def _put(mutant: Mutant) -> None:
    """Let the import of a module find the mutant in its place."""
    loader, place = importlib.machinery.SourceFileLoader, str(ROOT / mutant.path)
    whole, code = loader.get_code, mutant.code()

    def get_code(self: importlib.machinery.SourceFileLoader, name: str) -> object:
        return code if self.path == place else whole(self, name)

    loader.get_code = get_code  # type: ignore[method-assign, assignment]


def load_others(tests: Sequence[str]) -> None:
    """Import what the tests import, but for this project and its tests."""
    script = (
        "import sys, pytest\n"
        f"pytest.main(['-q', '--collect-only', *{list(tests)!r}])\n"
        "print('MODULES', *sys.modules)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    names = next(s for s in said.splitlines() if s.startswith("MODULES")).split()[1:]
    ours = ("fsdpdoctor", "fsdpdoctor_dashboard", "tests", "conftest", "__main__")
    for name in names:
        if name.split(".")[0] not in ours and not name.startswith("_pytest"):
            try:
                importlib.import_module(name)
            except ImportError:
                continue  # a namespace that another module made


def measure(subject: str, most: int | None, rng: random.Random) -> None:
    """Say which mutants lived, and how many were told."""
    paths, tests = SUBJECTS[subject]
    load_others(tests)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    if status := run_tests(tests, None, 3600):
        sys.exit(f"the tests of {subject} fail as they are: {status}")
    took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    limit_s = max(LEAST_S, SLOWER * took)
    mutants = [mutant for path in paths for mutant in mutants_of(path)]
    chosen = mutants if most is None else rng.sample(mutants, min(most, len(mutants)))
    told, begin = 0, time.monotonic()
    for mutant in sorted(chosen, key=lambda one: (one.path, one.line)):
        if run_tests(tests, mutant, limit_s):
            told += 1
        else:
            say(f"lives: {mutant}")
    spent = time.monotonic() - begin
    say(
        f"{subject}: {told} of {len(chosen)} told ({len(mutants)} there are), "
        f"{spent / 60:.1f} min"
    )


def main() -> None:
    """Measure some subjects, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("subjects", nargs="*", choices=[*SUBJECTS, []])
    parser.add_argument("--most", type=int, help="mutants of each subject")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    os.chdir(ROOT)
    if len(given.subjects) == 1:
        measure(given.subjects[0], given.most, random.Random(given.seed))
        return
    most = () if given.most is None else ("--most", str(given.most))
    for one in given.subjects or SUBJECTS:  # apart: what one imports is not forked
        command = [sys.executable, "-m", "tests.benchmarks.mutants", one]
        subprocess.run([*command, *most, "--seed", str(given.seed)], check=True)


if __name__ == "__main__":
    main()
