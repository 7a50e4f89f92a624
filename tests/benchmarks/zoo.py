"""Runs the zoo of faults, and says how many were found and what was said wrongly.

    python -m tests.benchmarks.zoo --write
    python -m tests.benchmarks.zoo A03 B01

With `--write`, and without numbers, it writes a page of results.
Recall is of entries whose fault was found, as told in the table of `tests/zoo`.
Precision is of alarms: a fault that was found against what was said at warning or
above of a healthy twin and is not true, or of a fault what calls it wrong by mistake.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fsdpdoctor.quantities import MS
from fsdpdoctor.report.value import Report
from tests.zoo.catalogue import ENTRIES, UNTOLD, reports
from tests.zoo.entry import Entry, false_alarms, in_words, missed, wrong_proofs
from tests.zoo.page import wanted

RESULTS = Path(__file__).parent / "zoo-results.md"


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What was said of an entry and of its twin."""

    number: str
    fault: str = "-"  # all that was said
    twin: str = "-"
    fault_ms: str = "-"
    twin_ms: str = "-"
    miss: str | None = None
    false: list[str] = field(default_factory=list)

    @property
    def entry(self) -> Entry:
        """What was run."""
        return next(entry for entry in ENTRIES if entry.number == self.number)


def outcome(entry: Entry) -> Outcome:
    """Run both."""
    result = Outcome(number=entry.number)
    with tempfile.TemporaryDirectory() as folder:
        said = entry.fault.report(Path(folder) / "fault")
        result.fault, result.fault_ms = in_words(said), _step_ms(said)
        result.miss = missed(entry, said)
        result.false = [
            f"of the fault: {row.code} {row.summary}"
            for row in wrong_proofs(entry, said)
        ]
        if entry.cure is not None:
            said = entry.cure.report(Path(folder) / "twin")
            result.twin, result.twin_ms = in_words(said), _step_ms(said)
            result.false += [
                f"of the twin: {row.code} {row.summary}"
                for row in false_alarms(entry, said)
            ]
    return result


def _step_ms(report: Report) -> str:
    median = report.step_time_ns.median
    return "-" if median is None else f"{median / MS:.1f}"


def summary(outcomes: list[Outcome]) -> list[str]:
    """Recall and precision, in words."""
    faults = [one for one in outcomes if one.entry.codes]
    found = sum(one.miss is None for one in faults)
    false = sum(len(one.false) for one in outcomes)
    healthy = sum(one.entry.cure is not None or not one.entry.codes for one in outcomes)
    precision = found / max(found + false, 1)
    ways = sorted({one.entry.told for one in outcomes})
    by_way = ", ".join(
        f"{sum(one.entry.told == way for one in outcomes)} {way}" for way in ways
    )
    return [
        f"entries run: {len(outcomes)} ({by_way}); healthy twins and jobs: {healthy}",
        f"recall: {found} of {len(faults)} = {found / max(len(faults), 1):.3f}",
        f"precision: {found} of {found + false} alarms = {precision:.3f}",
    ]


def lists(outcomes: list[Outcome]) -> list[str]:
    """Misses and false alarms."""
    misses = [
        f"- {one.entry.number}: {one.miss}; said: {one.fault}"
        for one in outcomes
        if one.miss is not None
    ]
    false = [f"- {one.entry.number} {row}" for one in outcomes for row in one.false]
    return [
        "## Misses",
        "",
        *(misses or ["None."]),
        "",
        "## False alarms",
        "",
        *(false or ["None."]),
    ]


INTRODUCTION = """# The zoo of faults

Written by `python -m tests.benchmarks.zoo --write`. What each entry is, and why others
cannot be told: `tests/zoo/README.md`. Times are of a step, the fault's and its twin's,
on modelled devices; those of drawn timelines are as drawn. With `--kept` a row is of
the last time that its entry was run.
"""


def page(outcomes: list[Outcome]) -> str:
    """The results, for the repository."""
    head = [
        INTRODUCTION,
        *(f"- {line}" for line in summary(outcomes)),
        f"- reports not told: {len(UNTOLD)} of {len(reports())}",
        "",
        *lists(outcomes),
        "",
        "## Entries",
        "",
        "| entry | told | has to be found | said | of the twin | step, ms | twin, ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = [
        f"| {one.entry.number} | {one.entry.told} | {wanted(one.entry)} | {one.fault} "
        f"| {one.twin} | {one.fault_ms} | {one.twin_ms} |"
        for one in outcomes
    ]
    return "\n".join([*head, *rows, ""])


def kept_in(path: Path | None) -> dict[str, Outcome]:
    """What a run that was broken off has left."""
    if path is None or not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = [Outcome(**json.loads(line)) for line in lines]
    return {one.number: one for one in rows}


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("numbers", nargs="*")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--fast", action="store_true", help="the default suite's group")
    parser.add_argument(
        "--kept", type=Path, help="a file of outcomes; those in it are not run again"
    )
    asked = parser.parse_args()
    chosen = [
        entry
        for entry in ENTRIES
        if (not asked.numbers or entry.number in asked.numbers)
        and (entry.fast or not asked.fast)
    ]
    kept = kept_in(asked.kept)
    outcomes = []
    for entry in chosen:
        start = time.monotonic()
        if entry.number in kept:
            outcomes.append(kept[entry.number])
            continue
        outcomes.append(one := outcome(entry))
        if asked.kept:
            with asked.kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(one)) + "\n")
        verdict = "ok" if one.miss is None and not one.false else "WRONG"
        took = time.monotonic() - start
        print(f"{entry.number} {verdict} {took:.1f} s: {one.fault} | {one.twin}")  # noqa: T201
        sys.stdout.flush()
    print("\n".join(["", *summary(outcomes), "", *lists(outcomes)]))  # noqa: T201
    if asked.write and len(chosen) == len(ENTRIES):
        RESULTS.write_text(page(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main()
