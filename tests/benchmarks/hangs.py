"""Stages hangs and deaths of real jobs, and asks who it was: live, and afterwards.

    python -m tests.benchmarks.hangs --repeats 5 --write
    python -m tests.benchmarks.hangs endless kill --ranks 2 --repeats 1

Writes `tests/benchmarks/hang-results.md`: a row for each case and number of ranks,
with how often culprit, place and cause were named. Jobs are torchrun's; it, and its
ranks, are forked of a process that has imported torch, or start anew with `--cold`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rig.ranks import ROOT, Started, run_python, start
from tests.rig.warm import warm_starts

SCRIPT = ROOT / "tests" / "rig" / "scripts" / "faults.py"
RESULTS = Path(__file__).parent / "hang-results.md"
HANG_AFTER_S = 3.0
WITHIN_S = 2.0
"""Beyond `HANG_AFTER_S`: then a live run must say who it is."""

NEVER_S = 600
"""A timeout that is not reached."""

LAST = "last"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A staged fault, and what must be said of it."""

    says: str  # a pattern of the summary: cause and place
    hangs: bool = True  # else ranks end at once
    everyone: bool = False  # the script's fault on every rank
    draws: bool = True  # of two ranks none is more to blame
    codes: tuple[str, ...] = ("FD406", "FD408")


FAULTS: dict[str, Fault] = {
    "branch": Fault(says=r"step 6.*blocks\.[23]"),
    "missing": Fault(says=r"log_loss"),
    "evaluation": Fault(says=r"step [67]"),
    "endless": Fault(says=r"stuck_in_loader.*loader", draws=False),
    "stop": Fault(says=r"SIGSTOP", draws=False),
    "shapes": Fault(says=r"float32\[1000\]|log_loss"),
    "background": Fault(says=r"thread metrics at .*faults|1 collective more"),
    "early": Fault(says=r"ended well after 6 steps", draws=False),
    "save": Fault(says=r"in save"),
    "raise": Fault(says=r"ValueError.*in die", hangs=False, draws=False),
    "memory": Fault(says=r"OutOfMemory.*in die", hangs=False, draws=False),
    "nan": Fault(says=r"nan.*in die", hangs=False, draws=False),
    "kill": Fault(says=r"without a word", hangs=False, draws=False),
    "abort": Fault(says=r"fatal signal.*in die", hangs=False, draws=False),
    "exit": Fault(says=r"exit status 3.*in die", hangs=False, draws=False),
    "same-exception": Fault(
        says=r"same RuntimeError.*in die", hangs=False, everyone=True, codes=("FD408",)
    ),
}


@dataclass(slots=True, kw_only=True)
class Answer:
    """What was said at one moment, and whether it is right."""

    moment: str
    wrong: list[str] = field(default_factory=list)
    summary: str = ""


def culprits(name: str, nproc: int) -> set[frozenset[int]]:
    """The sets of ranks that may be blamed."""
    fault, last = FAULTS[name], nproc - 1
    one = 0 if name == "save" else last
    if fault.everyone:
        return {frozenset(range(nproc))}
    allowed = {frozenset({one})}
    if fault.draws and nproc == 2:
        allowed.add(frozenset({0, 1}))
    return allowed


def stage(
    name: str, nproc: int, folder: Path, *, timeout_s: int, restarts: int = 0
) -> list[Answer]:
    """Run one job to its end, asking on the way."""
    run, mark = folder / "run", folder / "mark"
    options = ["--nproc-per-node", str(nproc), "--hang-after", str(HANG_AFTER_S)]
    if restarts:
        options += ["--max-restarts", str(restarts)]
        options += ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
    env = {"MARK": str(mark), "TIMEOUT": str(timeout_s)}
    argv = ("-m", "fsdpdoctor", "run", "--no-report", "--out", str(run), *options)
    job = start((sys.executable, *argv, str(SCRIPT), name), env)
    answers = []
    try:
        _wait_for(mark, job)
        if FAULTS[name].hangs and job.process.poll() is None:
            time.sleep(HANG_AFTER_S + WITHIN_S)
            answers += _live(name, nproc, run, job)
        if timeout_s >= NEVER_S and FAULTS[name].hangs:
            job.kill(signal.SIGTERM)
        _wait_for_end(job)
    finally:
        job.kill()
        job.finished()
    answers.append(_asked("afterwards", name, nproc, run))
    return answers


def _live(name: str, nproc: int, run: Path, job: Started) -> list[Answer]:
    before = job.process.poll()
    answer = _asked("live", name, nproc, run)
    # Gloo may end a job before: other sizes under one number end it at once.
    return [] if before is not None else [answer]


def _wait_for(mark: Path, job: Started) -> None:
    until = time.monotonic() + 180
    while not mark.exists() and job.process.poll() is None:
        if time.monotonic() > until:
            raise TimeoutError("the job did not come to its fault")
        time.sleep(0.05)


def _wait_for_end(job: Started) -> None:
    until = time.monotonic() + 150
    while job.process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)


def _asked(moment: str, name: str, nproc: int, run: Path) -> Answer:
    said = run_python("-m", "fsdpdoctor", "hang", str(run), "--json")
    answer = Answer(moment=moment)
    if said.status != 0:
        answer.wrong.append(said.stderr.strip()[-200:])
        return answer
    verdict: dict[str, Any] | None = json.loads(said.stdout)["verdict"]
    if verdict is None:
        answer.wrong.append("no verdict")
        return answer
    answer.summary = str(verdict["summary"])
    fault = FAULTS[name]
    if frozenset(verdict["ranks"]) not in culprits(name, nproc):
        answer.wrong.append(f"blames {verdict['ranks']}")
    if verdict["code"] not in fault.codes:
        answer.wrong.append(f"as {verdict['code']}")
    if re.search(fault.says, answer.summary) is None:
        answer.wrong.append(f"lacks /{fault.says}/")
    return answer


@dataclass(slots=True, kw_only=True)
class Row:
    """A case on some ranks: how often each moment was answered rightly."""

    name: str
    nproc: int
    how: str
    right: dict[str, list[bool]] = field(default_factory=dict)
    last: str = ""

    def add(self, answers: Sequence[Answer]) -> None:
        """Count a repeat."""
        for answer in answers:
            self.right.setdefault(answer.moment, []).append(not answer.wrong)
            self.last = answer.summary

    def of(self, moment: str) -> str:
        """As `5/5`."""
        found = self.right.get(moment)
        return "-" if not found else f"{sum(found)}/{len(found)}"

    def go_on_from(self, row: str) -> None:
        """Count the repeats of an earlier row, too."""
        cells = row.split("|")[4:6]
        for moment, cell in zip(("live", "afterwards"), cells, strict=False):
            right, _, of = cell.strip().partition("/")
            if of:
                wrong = int(of) - int(right)
                self.right[moment] = [True] * int(right) + [False] * wrong


ABOUT = (
    "Written by `python -m tests.benchmarks.hangs --write`. A cell says how often "
    "culprit, place and cause were all named: from live files, and after the end. A "
    "fault that ends the job at once has no live moment. A row is of the last time "
    "that its case was run, and with `--more` of the times before. Jobs are of "
    "torchrun, which, with its ranks, is forked of a process that has imported torch; "
    "where it says cold, they started anew."
)


def _earlier() -> dict[tuple[str, ...], str]:
    """The rows that are there, by case, ranks and how it ends."""
    rows = [line for line in RESULTS.read_text().splitlines() if " | " in line]
    return {
        tuple(cell.strip() for cell in row.split("|")[1:4]): row for row in rows[1:]
    }


def write(rows: Sequence[Row]) -> None:
    """Put these rows in place of earlier ones; those of other cases stay."""
    lines = [
        "# Staged hangs and deaths",
        "",
        f"{ABOUT} --hang-after is {HANG_AFTER_S:g} s, asked {WITHIN_S:g} s later.",
        "",
        "| case | ranks | how it ends | live | afterwards | said |",
        "|---|---|---|---|---|---|",
    ]
    table = _earlier()
    for row in rows:
        if not row.right:
            continue
        said = row.last.replace("|", "\\|").replace(str(ROOT) + os.sep, "")[:180]
        table[row.name, str(row.nproc), row.how] = (
            f"| {row.name} | {row.nproc} | {row.how} | {row.of('live')} | "
            f"{row.of('afterwards')} | {said} |"
        )
    order = list(FAULTS)
    ordered = sorted(table, key=lambda key: (order.index(key[0]), int(key[1])))
    RESULTS.write_text("\n".join([*lines, *(table[key] for key in ordered)]) + "\n")


def ways(name: str) -> list[tuple[str, int, int]]:
    """How a job of this case is to end: words, timeout, restarts."""
    if not FAULTS[name].hangs:
        return [("by itself", NEVER_S, 0), ("by itself, restarted", NEVER_S, 1)]
    return [
        ("timeout", 12, 0),
        ("SIGTERM, no timeout", NEVER_S, 0),
        ("timeout, restarted", 12, 1),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One repeat of a case."""

    name: str
    nproc: int
    how: str
    timeout_s: int
    restarts: int
    repeat: int

    @property
    def row(self) -> tuple[str, int, str]:
        """The row that it is counted in."""
        return self.name, self.nproc, self.how


def answers_of(job: Job, keep: Path | None) -> list[Answer]:
    """Stage it; the record of a wrong answer is kept."""
    with tempfile.TemporaryDirectory() as folder:
        answers = stage(
            job.name,
            job.nproc,
            Path(folder),
            timeout_s=job.timeout_s,
            restarts=job.restarts,
        )
        if keep is not None and any(answer.wrong for answer in answers):
            words = f"{job.name}-{job.nproc}-{job.how}-{job.repeat}".replace(" ", "_")
            shutil.copytree(folder, keep / words, dirs_exist_ok=True)
    return answers


def jobs_of(args: argparse.Namespace) -> list[Job]:
    """Each case once, then each once more: what is broken off is even."""
    rounds = itertools.product(
        range(args.repeats), args.case or list(FAULTS), args.ranks
    )
    return [
        Job(
            name=name,
            nproc=nproc,
            how=how + ", cold" * args.cold,
            timeout_s=timeout_s,
            restarts=restarts,
            repeat=repeat,
        )
        for repeat, name, nproc in rounds
        for how, timeout_s, restarts in ways(name)
        if not args.ways or how in args.ways
    ]


def arguments() -> argparse.Namespace:
    """Which cases, and how."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", nargs="*", choices=[*FAULTS, []])
    parser.add_argument("--ranks", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--ways", nargs="*", help="how jobs end, in the table's words")
    parser.add_argument("--at-once", type=int, default=1, help="jobs side by side")
    parser.add_argument("--cold", action="store_true", help="every process anew")
    parser.add_argument("--keep", type=Path, help="for records of wrong answers")
    parser.add_argument("--write", action="store_true")
    parser.add_argument(
        "--more", action="store_true", help="count on from the rows that are there"
    )
    return parser.parse_args()


def main() -> None:
    """Stage the cases."""
    args = arguments()
    rows: dict[tuple[str, int, str], Row] = {}
    earlier = _earlier() if args.more else {}
    with (
        nullcontext() if args.cold else warm_starts(),
        ThreadPoolExecutor(args.at_once) as pool,
    ):
        asked = {pool.submit(answers_of, j, args.keep): j for j in jobs_of(args)}
        for done in as_completed(asked):
            job, answers = asked[done], done.result()
            row = rows.get(job.row)
            if row is None:
                row = rows[job.row] = Row(name=job.name, nproc=job.nproc, how=job.how)
                row.go_on_from(earlier.get((job.name, str(job.nproc), job.how), ""))
            row.add(answers)
            for answer in answers:
                state = "; ".join(answer.wrong) or "right"
                print(  # noqa: T201
                    f"{job.name} {job.nproc} {job.how} {job.repeat} {answer.moment}: "
                    f"{state}: {answer.summary}",
                    flush=True,
                )
            if args.write:
                write(list(rows.values()))


if __name__ == "__main__":
    main()
