"""What is said of a record once the script has ended, in whatever state it left us."""

from __future__ import annotations

import contextlib
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.storage.run_folder import number, text_of
from fsdpdoctor.schema import rank_stem

REPORT_S = 300.0
"""A report that takes longer is not waited for."""

OTHERS_WAIT_S = 5.0
"""How long rank 0 waits for the node's other ranks to end before it reports."""

AFTER_FAULT_S = 2.0
"""The same where it has not ended well: others may be in a collective with it, and come
out only once this process has gone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the report needs of this process: a script may take it all away."""

    python: str
    environment: dict[str, str]
    working_directory: str

    @classmethod
    def now(cls) -> Surroundings:
        return cls(
            python=sys.executable,
            environment=dict(os.environ),
            working_directory=str(working_directory()),
        )


def working_directory() -> Path:
    """Of this process; the root where it has been removed."""
    try:
        return Path.cwd()
    except OSError:
        return Path("/")


LOOK_EVERY_S = 0.05

CHILDREN_S = 1.0
"""Of their processors' time: less is no training."""

UNSEEN = (
    "nothing was trained in this process, and its child processes are not recorded: "
    "start ranks with torchrun or --nproc-per-node, or record each with "
    "fsdpdoctor.record()"
)


class Recorded(Protocol):
    """A recording, as far as this asks it."""

    @property
    def trained(self) -> bool: ...
    def warn(self, words: str) -> None: ...


def say_unseen_children(session: Recorded) -> None:
    """Ranks that the script has started by itself, as `mp.spawn` does, are not seen."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    if not session.trained and used.ru_utime + used.ru_stime > CHILDREN_S:
        session.warn(UNSEEN)
        border.say(f"fsdpdoctor: {UNSEEN}")


def report(folder: Path, around: Surroundings) -> None:
    """Print the summary to stderr: the script's own output stays its own."""
    if (folder / "run.json").is_file():
        _wait_for_others(folder, number("LOCAL_WORLD_SIZE", 1, around.environment))
    if not (folder / "run.json").is_file() or not any(folder.glob("rank*.json")):
        border.say(f"fsdpdoctor: nothing is recorded in {short(folder)}")
        return
    border.last_words(sys.stdout.flush)
    shown = short(folder)
    directory = around.working_directory
    with _children_unheard():
        found = subprocess.run(
            [around.python, "-m", "fsdpdoctor", "analyze", str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env={**_terminal(), **around.environment},
            cwd=directory if Path(directory).is_dir() else folder,
            timeout=REPORT_S,
        )
    text = found.stdout if found.returncode in (0, 1) else ""
    again = f"fsdpdoctor analyze {shlex.quote(shown)}"
    border.say(f"{text}fsdpdoctor: recorded in {shown}; again with: {again}")


@contextlib.contextmanager
def _children_unheard() -> Iterator[None]:
    """The end of a process of ours is no matter of the script's own handler."""
    try:
        before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    except ValueError:  # another thread than the main one
        yield
        return
    try:
        yield
    finally:
        # None: set by other means than Python's, and left as it is now.
        if before is not None:
            signal.signal(signal.SIGCHLD, before)


def _terminal() -> dict[str, str]:
    """Kept until it is known to be a report, it does not see the terminal it is for."""
    try:
        if not sys.stderr.isatty():
            return {}
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return {}
    return {"FORCE_COLOR": "1", "COLUMNS": str(columns or 80)}


def short(folder: Path) -> str:
    """A folder as one would type it here."""
    try:
        return str(folder.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(folder)


def _wait_for_others(folder: Path, here: int) -> None:
    paths = [(folder / rank_stem(r)).with_suffix(".json") for r in range(here)]
    well = _has_ended(paths[0], "done")
    limit = OTHERS_WAIT_S if well else AFTER_FAULT_S
    for _ in range(round(limit / LOOK_EVERY_S)):  # a clock may stand still
        if all(_has_ended(path) for path in paths):
            return
        time.sleep(LOOK_EVERY_S)


def _has_ended(path: Path, how: str | None = None) -> bool:
    try:
        text = text_of(path)
        if how is not None:
            return f'"ended": "{how}"' in text
        return '"ended": "running"' not in text
    except OSError:
        return False
