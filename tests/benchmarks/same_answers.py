"""Whether another commit answers as this tree does: every gallery case, every trace.

    python -m tests.benchmarks.same_answers COMMIT [--keep FOLDER]

Both print `analyze --format json` of each case under `traces/` and of each public trace
beside the project; what differs is printed, field by field, with paths left out.
Exit status 0 where nothing does. Takes about two minutes on two cores.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.other_tree import ROOT, tree_of

PUBLIC = ROOT.parent / "shared" / "traces"

ANSWER = """
import io, json, sys, contextlib
from pathlib import Path
from fsdpdoctor.cli import main

asked, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
for name, paths in asked.items():
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(
                ["analyze", *paths, "--format", "json", "--no-cache", "--jobs", "1"],
                standalone_mode=False,
            )
        except BaseException as error:
            status = f"{type(error).__name__}: {error}"
    text = out.getvalue()
    answer = json.loads(text) if text.startswith("{") else text
    (folder / f"{name}.json").write_text(
        json.dumps({"status": status, "answer": answer, "stderr": err.getvalue()})
    )
"""


def cases() -> dict[str, list[str]]:
    """What is asked of both: a name and the paths that it stands for."""
    gallery = sorted(path.parent for path in (ROOT / "traces").glob("*/run.json"))
    found = {f"gallery.{path.name}": [str(path)] for path in gallery}
    folders = {path.parent for path in PUBLIC.rglob("*.json*")}
    found |= {
        "public." + ".".join(folder.relative_to(PUBLIC).parts): [str(folder)]
        for folder in sorted(folders)
    }
    for path in sorted((PUBLIC / "odd_files").glob("*.json*")):
        found[f"odd.{path.name}"] = [str(path)]
    return found


def answers(tree: Path, folder: Path) -> subprocess.Popen[bytes]:
    """One tree's answers, into a folder, by a process of its own."""
    folder.mkdir(parents=True)
    path = os.pathsep.join([str(tree), str(tree / "dashboard")])
    return subprocess.Popen(
        [sys.executable, "-c", ANSWER, json.dumps(cases()), str(folder)],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
    )


def differences(old: Any, new: Any, at: str = "") -> Iterator[str]:
    """Where two answers differ, a line for each place."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            if key not in old or key not in new:
                yield f"{at}.{key}: only in the {'new' if key in new else 'old'}"
            else:
                yield from differences(old[key], new[key], f"{at}.{key}")
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for i, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differences(one, other, f"{at}[{i}]")
    elif old != new:
        yield f"{at}: {str(old)[:150]!r} -> {str(new)[:150]!r}"


def main() -> int:
    """Ask both, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit")
    parser.add_argument("--keep", type=Path, help="where to leave the answers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.keep or Path(temporary)
        with tree_of(given.commit, Path(temporary)) as tree:
            running = [answers(tree, work / "old"), answers(ROOT, work / "new")]
            if any(process.wait() for process in running):
                return 2
        count = 0
        for name in cases():
            old, new = (
                json.loads((work / side / f"{name}.json").read_text())
                for side in ("old", "new")
            )
            lines = list(differences(old, new))
            count += bool(lines)
            for line in lines[:20]:
                print(f"{name}{line}")
        print(f"{len(cases())} answers, {count} differ")
    return 1 if count else 0


if __name__ == "__main__":
    raise SystemExit(main())
