"""Another commit's tree, to be asked the same as this one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def tree_of(commit: str, folder: Path) -> Iterator[Path]:
    """A work tree of a commit, with its own scanner compiled."""
    tree = folder / "tree"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "-q", "--detach", tree, commit], check=True)
    try:
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(build, cwd=tree, check=True)
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", tree], check=True)
