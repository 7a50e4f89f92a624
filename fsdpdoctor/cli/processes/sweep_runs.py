"""Rehearses the configurations of a sweep, several at once, and remembers each.

What is done is in the sweep's folder: `results.jsonl` has a line for each, and a sweep
into the same folder, of the same script with the same settings, does what is left.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fsdpdoctor.changes.plan import Plan, save_plan
from fsdpdoctor.cli.inputs import measure_run
from fsdpdoctor.cli.processes.logged_command import run_logged
from fsdpdoctor.cli.processes.trial_runs import why_failed
from fsdpdoctor.errors import FsdpDoctorError, UsageError
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.planning.script_settings import (
    Handle,
    arguments_with,
    environment_with,
)
from fsdpdoctor.planning.sweep import (
    Choice,
    Outcome,
    cannot_fit,
    plan_of,
    replicas_of,
)
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import StepRecord
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.forecast import replay_run
from fsdpdoctor.simulate.plans.predict import Replay
from fsdpdoctor.simulate.plans.settings import settings
from fsdpdoctor.version import __version__

RESULTS = "results.jsonl"
STEPS = 2
"""Of a rehearsal: the first allocates, the second is like all that follow."""

TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptScript:
    """What is rehearsed, and what stays the same throughout."""

    script: str
    args: tuple[str, ...]
    is_module: bool
    handles: Mapping[str, Handle]
    options: tuple[str, ...]  # of `rehearse`: --on, --bandwidth and the like
    node_size: int

    def target(self, choice: Choice) -> list[str]:
        """The script and its arguments."""
        made = arguments_with(self.args, choice, self.handles)
        return [*["-m"] * self.is_module, self.script, *made]

    def environment(self, choice: Choice) -> dict[str, str]:
        """What the script is told by variables."""
        return environment_with(choice, self.handles)

    def job(self, choice: Choice) -> list[str]:
        """Options of `rehearse` that are the configuration's own."""
        world, replicas = int(choice["world"]), replicas_of(choice, self.node_size)
        size = (
            ["--world-size", str(world)]
            if replicas == 1
            else ["--mesh", f"{replicas}x{world // replicas}"]
        )
        said = choice.get("checkpointing", "as-is")
        return [*size, *(["--checkpointing", said] if said != "as-is" else [])]

    @property
    def fingerprint(self) -> str:
        """Of what a result depends on, beside the configuration."""
        source = Path(self.script).read_bytes() if not self.is_module else b""
        said = [__version__, self.script, self.args, self.options, self.node_size]
        return hashlib.sha256(json.dumps(said).encode() + source).hexdigest()[:16]


@dataclass(slots=True, kw_only=True)
class SweepRuns:
    """A sweep's rehearsals."""

    swept: SweptScript
    folder: Path
    jobs: int
    say: Callable[[str], None]
    _base: Replay | None = None
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _ended: bool = False
    _known: dict[str, Outcome] = field(default_factory=dict)

    def run(self, choices: Sequence[Choice]) -> list[Outcome]:
        """All of them, in their order. Raises UsageError where none can be."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._known = self._read()
        kept = sum(_key(choice) in self._known for choice in choices)
        if kept:
            self.say(f"{kept} of {len(choices)} were rehearsed before")
        todo: list[Choice] = []
        plans: dict[str, Path | None] = {}
        for choice in choices:
            if _key(choice) in self._known:
                continue
            made = self._plan(choice)
            if isinstance(made, Outcome):
                self._keep(made, len(choices), None)
                continue
            plans[_key(choice)] = made
            todo.append(choice)
        with ThreadPoolExecutor(self.jobs) as pool:
            try:
                self._run_all(pool, todo, plans, len(choices))
            except BaseException:
                self._end_all()
                raise
        return [self._known[_key(choice)] for choice in choices]

    def _run_all(
        self,
        pool: ThreadPoolExecutor,
        todo: Sequence[Choice],
        plans: Mapping[str, Path | None],
        total: int,
    ) -> None:
        under_way: set[Future[Outcome]] = set()
        waiting = list(todo)
        while waiting or under_way:
            while waiting and len(under_way) < self.jobs:
                choice = waiting.pop(0)
                smaller = cannot_fit(choice, list(self._known.values()))
                if smaller is not None:
                    self._keep(_skipped(choice, smaller), total, None)
                    continue
                plan = plans[_key(choice)]
                under_way.add(pool.submit(self._rehearsed, choice, plan, total))
            done, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()

    def _end_all(self) -> None:
        """Whoever asked has left, as with Ctrl-C: what runs is no result."""
        self._ended = True
        for process in self._started:
            if process.poll() is None:
                process.terminate()

    # What was done before

    def _read(self) -> dict[str, Outcome]:
        known: dict[str, Outcome] = {}
        path = self.folder / RESULTS
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        for line in lines:
            try:
                said = json.loads(line)
                outcome = Outcome(**said["outcome"])
                of = said["of"]
            except (ValueError, KeyError, TypeError):
                continue  # written by another version, or cut off
            if of == self.swept.fingerprint:
                known[_key(outcome.choice)] = outcome
        return known

    def _keep(self, outcome: Outcome, total: int, took_s: float | None) -> None:
        self._known[_key(outcome.choice)] = outcome
        line = json.dumps({"of": self.swept.fingerprint, "outcome": asdict(outcome)})
        with (self.folder / RESULTS).open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")
        speed = outcome.per_second
        if speed is not None:
            words = f"{speed:,.0f} {outcome.unit}/s for each device"
        elif outcome.usable:
            words = f"{(outcome.step_ns or 0) / 1e6:.1f} ms a step"
        else:
            words = outcome.reason
        took = "" if took_s is None else f" ({took_s:.0f} s)"
        named = ", ".join(f"{k} {v}" for k, v in outcome.choice.items())
        self.say(f"{len(self._known)} of {total}: {named}: {words}{took}")

    # One rehearsal

    def _rehearsed(self, choice: Choice, plan: Path | None, total: int) -> Outcome:
        began = time.monotonic()
        outcome = self._outcome(choice, plan)
        if not self._ended:
            self._keep(outcome, total, time.monotonic() - began)
        return outcome

    def _outcome(self, choice: Choice, plan: Path | None) -> Outcome:
        run = self._folder_of(choice)
        apply = [] if plan is None else ["--apply", str(plan)]
        status, log = self._start(choice, run, apply)
        verdict = _verdict(run)
        command = tuple(_shown(self.swept, choice, apply))
        if status != 0 or verdict is None:
            reason = why_failed(status, log.read_text(errors="replace"))
            return Outcome(choice=choice, fits=None, reason=reason, command=command)
        try:
            last = _last_step(run)
        except FsdpDoctorError as error:
            reason = f"its record cannot be used: {error}"
            return Outcome(choice=choice, fits=None, reason=reason, command=command)
        return Outcome(
            choice=choice,
            fits=verdict["fits"],
            reason="" if verdict["fits"] else _why_not(verdict),
            step_ns=last.duration_ns,
            tokens=_known(last.tokens),
            samples=_known(last.samples),
            reserved_bytes=verdict["reserved_bytes"],
            needed_bytes=verdict["needed_bytes"],
            room_bytes=verdict["room_bytes"],
            tight=verdict["retries"] > 0,
            command=command,
        )

    def _folder_of(self, choice: Choice) -> Path:
        """A new one: of a rehearsal that was broken off there may be a rest."""
        name = hashlib.sha256(_key(choice).encode()).hexdigest()[:12]
        number = 0
        while (folder := self.folder / "runs" / f"{name}-{number}").exists():
            number += 1
        return folder

    def _start(
        self, choice: Choice, run: Path, apply: Sequence[str]
    ) -> tuple[int | None, Path]:
        run.parent.mkdir(parents=True, exist_ok=True)
        log = run.with_name(f"{run.name}.log")
        swept = self.swept
        command = [
            *(sys.executable, "-m", "fsdpdoctor", "rehearse", *swept.options),
            *(*swept.job(choice), *apply, "--stop-after", str(STEPS), "--no-report"),
            *("--out", str(run), "--verdict", str(_verdict_of(run))),
            *swept.target(choice),
        ]
        # Shapes need no threads, and several rehearsals run at once.
        own = {"OMP_NUM_THREADS": "1", **swept.environment(choice)}
        return (
            run_logged(command, log, TIMEOUT_S, own, self._started.append),
            log,
        )

    # Plans

    def _plan(self, choice: Choice) -> Path | Outcome | None:
        """A file with what the configuration changes of FSDP2's units; an outcome where
        it cannot be.
        """
        plan = plan_of(choice, self.swept.node_size)
        if plan is None:
            return None
        base = self._base or self._rehearse_base(choice)
        self._base = base
        constraints = base.calibration.constraints
        try:
            step = changed(plan, base.calibration.step, constraints).step
        except UsageError as error:
            return Outcome(choice=choice, fits=None, reason=str(error))
        apply = settings(plan, step, constraints)
        apply.pop("mesh", None)  # the rehearsal itself has it
        path = self.folder / "plans" / f"{_slug(plan)}.json"
        path.parent.mkdir(exist_ok=True)
        save_plan(plan, path, apply)
        return path

    def _rehearse_base(self, choice: Choice) -> Replay:
        """As the script is: its units are what a plan names."""
        own = {k: v for k, v in choice.items() if k not in ("wrap", "reshard")}
        self.say("rehearsing the script as it is, for its units")
        run = self._folder_of({**own, "base": "units"})
        status, log = self._start(own, run, [])
        if status != 0:
            reason = why_failed(status, log.read_text(errors="replace"))
            raise UsageError(f"the script cannot be rehearsed as it is: {reason}")
        opened = open_paths((run,))
        return replay_run(opened, measure_run(opened, ReadOptions(jobs=1)))


def _key(choice: Choice) -> str:
    return json.dumps(dict(sorted(choice.items())))


def _slug(plan: Plan) -> str:
    words = str(plan).replace("reshard after forward", "reshard").lower()
    return "-".join(re.findall(r"\w+", words))


def _skipped(choice: Choice, smaller: Outcome) -> Outcome:
    name = next(n for n in choice if choice[n] != smaller.choice[n])
    return Outcome(
        choice=choice,
        fits=False,
        reason=f"not even {name} {smaller.choice[name]} fits",
        room_bytes=smaller.room_bytes,
    )


def _verdict_of(run: Path) -> Path:
    return run.with_name(f"{run.name}.verdict.json")


def _verdict(run: Path) -> dict[str, Any] | None:
    path = _verdict_of(run)
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _why_not(verdict: Mapping[str, Any]) -> str:
    needed, room = verdict["needed_bytes"] / 2**30, verdict["room_bytes"] / 2**30
    place = verdict["place"]
    if needed <= room:
        reserved = verdict["reserved_bytes"] / 2**30
        return (
            f"fragmented: reserves {reserved:.1f} of {room:.1f} GiB for {needed:.1f}, "
            f"in {place}"
        )
    return f"needs {needed:.1f} of {room:.1f} GiB, in {place}"


def _last_step(run: Path) -> StepRecord:
    """The last whole one."""
    steps = [step for step in open_run(run).sources[0].load().steps if step.complete]
    if not steps:
        raise UsageError("it has no whole step")
    return steps[-1]


def _known(count: int) -> int | None:
    return count if count > 0 else None


def _shown(swept: SweptScript, choice: Choice, apply: Sequence[str]) -> list[str]:
    """The command as a user would type it."""
    before = [f"{k}={shlex.quote(v)}" for k, v in swept.environment(choice).items()]
    apply = [_relative(word) for word in apply]
    words = [*swept.options, *swept.job(choice), *apply, *swept.target(choice)]
    return [*before, "fsdpdoctor", "rehearse", *map(shlex.quote, words)]


def _relative(word: str) -> str:
    path, here = Path(word), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else word
