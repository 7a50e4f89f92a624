"""Starts the short runs of `tune`, ends them in time, and reads what they left."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fsdpdoctor.changes.plan import save_plan
from fsdpdoctor.cli.inputs import measure_run
from fsdpdoctor.cli.processes.logged_command import run_logged
from fsdpdoctor.errors import FsdpDoctorError, InputError
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.simulate.plans.forecast import replay_run
from fsdpdoctor.simulate.plans.predict import Replay
from fsdpdoctor.tune import Candidate, Failed, Measured, Outcome

FIRST_TIMEOUT_S = 3600.0
"""Of the first run: nothing is known of it yet."""

SLOWER = 3.0
"""A candidate that takes so many times as long as the first run is ended..."""

START_S = 60.0
"""... and so much more, in which a busy machine imports torch."""


@dataclass(slots=True, kw_only=True)
class TrialRuns:
    """One script's short runs, each in a folder of its own."""

    launch: Sequence[str]  # what starts the ranks; `run`'s own arguments follow
    options: Sequence[str]  # of `run`
    script: Sequence[str]
    folder: Path
    timeout_s: float | None  # None: by the first run
    say: Callable[[str], None]
    first: Replay | None = None
    _first_s: float | None = None
    _count: int = field(default=0)

    def run(self, candidate: Candidate | None) -> Outcome:
        """Run the script, as it is or with a plan, and measure it."""
        name = f"run-{self._count:02d}"
        self._count += 1
        what = "as it is" if candidate is None else str(candidate.plan)
        self.folder.mkdir(parents=True, exist_ok=True)
        run, log = self.folder / name, self.folder / f"{name}.log"
        apply: list[str] = []
        if candidate is not None:
            plan = self.folder / f"{name}.plan.json"
            save_plan(candidate.plan, plan, candidate.apply)
            apply = ["--apply", str(plan)]
        started = time.monotonic()
        outcome = self._outcome(run, log, apply)
        took = time.monotonic() - started
        if self._first_s is None:
            self._first_s = took
        said = (
            f"{outcome.step_ns / 1e6:.1f} ms a step"
            if isinstance(outcome, Measured)
            else outcome.reason
        )
        self.say(f"{name}: {what}: {said} ({took:.0f} s)")
        return outcome

    def _outcome(self, run: Path, log: Path, apply: Sequence[str]) -> Outcome:
        command = [
            *self.launch,
            *("--out", str(run)),
            *apply,
            *self.options,
            *self.script,
        ]
        status = self._wait(command, log)
        if status != 0:
            return Failed(reason=why_failed(status, log.read_text(errors="replace")))
        try:
            return self._measured(run)
        except FsdpDoctorError as error:
            return Failed(reason=f"its record cannot be used: {error}")

    def _wait(self, command: Sequence[str], log: Path) -> int | None:
        """The exit status; None where the time was up."""
        return run_logged(command, log, self._timeout())

    def _timeout(self) -> float:
        if self.timeout_s is not None:
            return self.timeout_s
        if self._first_s is None:
            return FIRST_TIMEOUT_S
        return SLOWER * self._first_s + START_S

    def _measured(self, folder: Path) -> Measured:
        if not (folder / "run.json").is_file():
            raise InputError(f"{folder} holds no run")
        run = open_paths((folder,))
        replay = replay_run(run, measure_run(run, ReadOptions(jobs=1)))
        if self.first is None:
            self.first = replay
        calibration = replay.calibration
        return Measured(
            step_ns=calibration.measured_ns,
            exposed_ns=calibration.exposed_ns,
            bits=tuple(p.read_text().strip() for p in sorted(folder.glob("bits*.txt"))),
        )


_MEMORY = re.compile(r"OutOfMemoryError|out of memory|MemoryError", re.IGNORECASE)
_ERROR = re.compile(r"^(?:\[rank\d+\]: ?)?((?:Error: |[\w.]*(?:Error|Exception): ).*)$")


def why_failed(status: int | None, log: str) -> str:
    """One line on how a job ended, from its status and its output."""
    if status is None:
        return "timed out"
    if _MEMORY.search(log):
        return "out of memory"
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return "killed, perhaps for its memory"
    for line in log.splitlines():
        if found := _ERROR.match(line.strip()):
            return found[1][:200]
    return f"ended with status {status}"
