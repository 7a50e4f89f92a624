"""Predictions against what came of them: kinds of model, changes, two machines.

    python -m tests.benchmarks.predictions [--jobs N] [--rows FILE]

Each kind of model is recorded once on a modelled wire in virtual time, on the
host alone and on a modelled device with streams; each change is predicted from that
record, then made as `run --apply` makes it, and recorded. Compute is sleeps, so that
the figures are the same on every machine. It writes `predictions-results.md` beside
this file.

With `--rows` what was tried lies in a file, and is not tried again: a run that was
stopped goes on, and the page is of all that the file holds.

On the device with streams nothing slows compute but its own waits; `--contended` has
collectives take multiprocessors from compute, as on an H100, which no run shows.
"""

# ruff: noqa: T201 - it prints tables

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from multiprocessing import get_context
from pathlib import Path

import msgspec

from fsdpdoctor.errors import FsdpDoctorError
from tests.simulate.kinds import KINDS
from tests.simulate.tried import GROUNDS, plans, tried

RESULTS = Path(__file__).with_name("predictions-results.md")

APART = 0.01
"""Steps that differ by less need not be ranked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One change to one kind. Without a step: why it was not made."""

    ground: str
    kind: str
    change: str
    predicted_ns: int = 0
    error_ns: int = 0
    step_ns: int = 0
    refused: str = ""

    @property
    def inside(self) -> bool:
        """Whether it came out within the stated error."""
        return abs(self.predicted_ns - self.step_ns) <= self.error_ns


def rows(asked: tuple[str, str]) -> list[Row]:
    """Every change to one kind, on one ground."""
    ground, kind = asked
    found: list[Row] = []
    for name, plan in plans(GROUNDS[ground]).items():
        try:
            made = tried(kind, ground, plan)
        except FsdpDoctorError as error:
            found.append(Row(ground=ground, kind=kind, change=name, refused=str(error)))
            continue
        found.append(
            Row(
                ground=ground,
                kind=kind,
                change=name,
                predicted_ns=made.prediction.step_ns,
                error_ns=made.prediction.error_ns,
                step_ns=made.step_ns,
            )
        )
    return found


def kept(path: Path | None) -> list[Row]:
    """What was tried before."""
    if path is None or not path.exists():
        return []
    return msgspec.json.decode(path.read_bytes(), type=list[Row])


def ordered(made: Sequence[Row]) -> tuple[int, int]:
    """Pairs of one kind more than APART apart: right, and all."""
    right = pairs = 0
    for a, b in combinations(made, 2):
        if (a.ground, a.kind) != (b.ground, b.kind):
            continue
        if abs(a.step_ns - b.step_ns) > APART * min(a.step_ns, b.step_ns):
            pairs += 1
            right += (a.predicted_ns < b.predicted_ns) == (a.step_ns < b.step_ns)
    return right, pairs


def summary(found: Sequence[Row]) -> Iterator[str]:
    """A line for each ground, and one for all."""
    yield "| machine | changes made | inside the stated error | pairs in order |"
    yield "| --- | --- | --- | --- |"
    for ground in (*dict.fromkeys(row.ground for row in found), "all"):
        made = [r for r in found if r.step_ns and ground in (r.ground, "all")]
        inside = sum(row.inside for row in made)
        right, pairs = ordered(made)
        yield (
            f"| {ground} | {len(made)} | {inside} ({inside / max(len(made), 1):.1%}) "
            f"| {right} of {pairs} ({right / max(pairs, 1):.1%}) |"
        )


def by_kind(found: Sequence[Row]) -> Iterator[str]:
    """A line for each kind on each ground."""
    yield "| machine | kind | made | inside | worst, off by | stated | in order |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for ground, kind in dict.fromkeys((row.ground, row.kind) for row in found):
        made = [r for r in found if r.step_ns and (r.ground, r.kind) == (ground, kind)]
        if not made:
            yield f"| {ground} | {kind} | 0 | | | | |"
            continue
        worst = max(made, key=lambda r: abs(r.predicted_ns / r.step_ns - 1))
        right, pairs = ordered(made)
        yield (
            f"| {ground} | {kind} | {len(made)} | {sum(r.inside for r in made)} | "
            f"{worst.change}, {worst.predicted_ns / worst.step_ns - 1:+.2%} | "
            f"{worst.error_ns / worst.step_ns:.2%} | {right} of {pairs} |"
        )


def outside(found: Sequence[Row]) -> Iterator[str]:
    """What came out beyond its error."""
    for row in found:
        if row.step_ns and not row.inside:
            off = row.predicted_ns / row.step_ns - 1
            stated = row.error_ns / row.step_ns
            yield (
                f"- {row.ground}, {row.kind}, {row.change}: {off:+.2%}, "
                f"stated {stated:.2%}"
            )


def refused(found: Sequence[Row]) -> Iterator[str]:
    """Why changes were not made, and how often."""
    reasons: dict[str, int] = {}
    for row in found:
        if row.refused:
            what = f"{row.change}: {row.refused.partition(':')[0]}"
            reasons[what] = reasons.get(what, 0) + 1
    for what, count in sorted(reasons.items()):
        yield f"- {count}x {what}"


def main() -> None:
    """Print the tables, and write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--contended", action="store_true")
    parser.add_argument("--kinds", help="Only these, with semicolons between.")
    parser.add_argument("--rows", type=Path, help="Where rows are kept.")
    given = parser.parse_args()
    grounds = ["streams, contended"] if given.contended else ["blocking", "streams"]
    kinds = list(KINDS)
    if given.kinds:
        kinds = given.kinds.split(";")
    found = kept(given.rows)
    known = {(row.ground, row.kind) for row in found}
    asked = [(ground, kind) for kind in kinds for ground in grounds]
    # Spawned: a process that holds a modelled device's tables is not forked.
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        for some in pool.map(rows, [one for one in asked if one not in known]):
            found += some
            if given.rows:
                given.rows.write_bytes(msgspec.json.encode(found))
            print(*list(by_kind(some))[2:], *outside(some), sep="\n", flush=True)
    found.sort(key=lambda row: grounds.index(row.ground))  # kinds stay in their order
    kinds = list(dict.fromkeys(row.kind for row in found))
    option = " --contended" if given.contended else ""
    lines = [
        "# Predictions, and what came of them",
        "",
        f"    python -m tests.benchmarks.predictions{option}",
        "",
        f"{len(kinds)} kinds of model, {len(plans(GROUNDS['streams']))} changes.",
        f"Asked: 97 % inside the stated error, 99 % of pairs over {APART:.0%} ranked.",
        "",
        *summary(found),
        "",
        "## By kind",
        "",
        *by_kind(found),
        "",
        "## Outside the stated error",
        "",
        *(list(outside(found)) or ["None."]),
        "",
        "## Not made: what a model has no part for",
        "",
        *refused(found),
    ]
    text = "\n".join(lines) + "\n"
    if given.rows or not given.kinds:
        name = "predictions-contended-results.md"
        path = RESULTS.with_name(name) if given.contended else RESULTS
        path.write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
