"""Another commit's tree, to be asked the same as this one."""

from __future__ import annotations

import compileall
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
        compile_modules(tree)
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", tree], check=True)


def compile_modules(tree: Path = ROOT) -> None:
    """As an installer leaves them. Where Python may write no bytecode, each command
    would compile all that it imports: a third of what a small run's report takes.
    """
    for package in (tree / "fsdpdoctor", tree / "dashboard"):
        compileall.compile_dir(package, quiet=1)
