"""The tutorial's commands print what it says that they print."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.rig.ranks import run_python

DOCS = Path(__file__).parents[1] / "docs"

BLOCK = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands() -> list[tuple[list[str], list[str]]]:
    """Each command, and the lines that it is said to print."""
    found: list[tuple[list[str], list[str]]] = []
    for block in BLOCK.findall((DOCS / "tutorial.md").read_text(encoding="utf-8")):
        for line in block.splitlines():
            if line.startswith("$ fsdpdoctor "):
                found.append((line.split()[2:], []))
            else:
                found[-1][1].append(line)
    return found


@pytest.mark.slow
def test_each_line_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its order. Time is virtual: the figures are the same everywhere."""
    shutil.copy(DOCS / "tutorial" / "train.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert len(commands()) == 7
    for words, lines in commands():
        ended = run_python("-m", "fsdpdoctor", *words, timeout_s=300)
        assert ended.status == 0, ended.stderr
        # A run's report goes to stderr: stdout is the script's.
        printed = iter([*ended.stdout.splitlines(), *ended.stderr.splitlines()])
        for line in lines:
            assert line in printed, (
                f"{' '.join(words)}: {line!r} in\n{ended.stdout}{ended.stderr}"
            )
