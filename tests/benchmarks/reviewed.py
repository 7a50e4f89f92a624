"""The faults of `tests/dashboard/reviewed.py` in another commit's pages.

    python -m tests.benchmarks.reviewed COMMIT [--tree FOLDER]

Each test that looks at pages in a browser runs against that commit's server, which
shows runs that it wrote itself: it has to fail. The others are of code that is not
there, and are listed as such. Takes some minutes; `--tree` is a work tree of the commit
that is there already.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.other_tree import ROOT, tree_of
from tests.dashboard.reviewed import FAULTS

VISITING = "dashboard/test_browser"
"""Files whose tests ask a server."""
OF_A_FILE = "dashboard/test_browser_pages.py::test_a_report_is_printed_whole"
"""It asks none."""


def outcome(test: str, tree: Path) -> str:
    """How a test ends on another tree's pages, with the line that says why."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-x", f"tests/{test}"]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"FSDPDOCTOR_OTHER_TREE": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    reasons = re.findall(r"^E   +(.+)$", done.stdout, re.MULTILINE)
    why = reasons[0][:110] if reasons else ""
    if done.returncode == 1:
        return f"fails: {why}"
    return "passes" if done.returncode == 0 else f"did not run: {why}"


def main() -> None:
    """Run them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--tree", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if given.tree is not None:
            table(given.tree)
            return
        with tree_of(given.commit, Path(folder)) as tree:
            table(tree)


def table(tree: Path) -> None:
    """Each test once, under the faults that it is for."""
    known: dict[str, str] = {}
    for number, fault in FAULTS.items():
        for test in fault.tests:
            if test not in known:
                asks = test.startswith(VISITING) and test != OF_A_FILE
                known[test] = outcome(test, tree) if asks else "not of a server's pages"
            print(f"{number:>4}  {test}\n      {known[test]}", flush=True)


if __name__ == "__main__":
    main()
