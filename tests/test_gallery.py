"""The gallery: what is found in each run of `traces/` is what its diagnosis says."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.detectors import ALL, judge_all
from fsdpdoctor.finding import Finding, NotJudged
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import UNKNOWN
from tests.gallery.cases import CASES

TRACES = Path(__file__).parent.parent / "traces"

MOST_BYTES = 300_000
"""Of a case: a clone of the repository should stay small."""

Answer = dict[str, Any]


@cache
def diagnosis(case: str) -> Answer:
    """What was written down by hand."""
    return tomllib.loads((TRACES / case / "diagnosis.toml").read_text())


@cache
def judged(case: str) -> tuple[list[Finding], list[NotJudged]]:
    """What the detectors say."""
    return judge_all(measure(open_run(TRACES / case)))


def where(finding: Finding) -> Answer:
    """A finding as a diagnosis has it, without its cost."""
    answer: Answer = {
        "code": finding.code,
        "severity": finding.severity.name.lower(),
        "units": sorted(finding.units),
        "ranks": list(finding.ranks),
    }
    return answer if finding.phase is None else answer | {"phase": finding.phase}


def in_order(answers: list[Answer]) -> list[Answer]:
    """Their order in a report depends on their cost."""
    return sorted(answers, key=lambda answer: json.dumps(answer, sort_keys=True))


def costs_outside(case: str) -> Iterator[str]:
    """Costs that are not where they were expected; none expected: none found."""
    findings = {json.dumps(where(f), sort_keys=True): f for f in judged(case)[0]}
    for expected in diagnosis(case)["expect"]:
        wanted = expected.get("cost_ms")
        rest = {key: value for key, value in expected.items() if key != "cost_ms"}
        cost_ns = findings[json.dumps(rest, sort_keys=True)].cost_ns_per_step
        if wanted is None or cost_ns is None:
            if wanted is not None or cost_ns is not None:
                yield f"{expected['code']} costs {cost_ns} ns, expected {wanted} ms"
        elif not wanted[0] * MS <= cost_ns <= wanted[1] * MS:
            yield f"{expected['code']} costs {cost_ns / MS} ms, expected {wanted}"


@pytest.mark.parametrize("case", CASES)
def test_what_is_found_is_what_is_wrong(case: str) -> None:
    """No finding too few and none too many; what cannot be told is not called clear."""
    findings, not_judged = judged(case)
    expected = [
        {key: value for key, value in one.items() if key != "cost_ms"}
        for one in diagnosis(case)["expect"]
    ]

    assert in_order([where(f) for f in findings]) == in_order(expected)
    assert list(costs_outside(case)) == []
    assert [n.code for n in not_judged] == diagnosis(case)["not_judged"]


@pytest.mark.parametrize("case", CASES)
def test_a_near_miss_is_judged_and_clear(case: str) -> None:
    """Neither found nor left open, and the diagnosis says what it is a near miss of."""
    findings, not_judged = judged(case)
    answered = {f.code for f in findings} | {n.code for n in not_judged}

    assert answered.intersection(diagnosis(case)["near_miss"]) == set()


DRAWN_ONLY = "FD901"
"""A live record names every gap at least by its edges, so no case can show time that
nothing explains; drawn ones do."""


def test_each_detector_has_a_case_and_a_near_miss() -> None:
    """Each code is found in one case at least, and narrowly missed in another."""
    codes = {detector.code for detector in ALL} - {DRAWN_ONLY}
    found = {f.code for case in CASES for f in judged(case)[0]}
    missed = {code for case in CASES for code in diagnosis(case)["near_miss"]}

    assert codes - found == set()
    assert codes - missed == set()


def test_the_table_is_the_folder() -> None:
    """Each case has its folder, and a row in `traces/README.md` with what is found."""
    rows = {}
    for line in (TRACES / "README.md").read_text().splitlines():
        if line.startswith("| `"):
            name, _, found, missed, _ = (c.strip() for c in line.split("|")[1:6])
            rows[name.strip("`")] = (found, missed)

    assert {path.name for path in TRACES.iterdir() if path.is_dir()} == set(CASES)
    assert rows == {
        case: (
            ", ".join(dict.fromkeys(e["code"] for e in diagnosis(case)["expect"])),
            ", ".join(diagnosis(case)["near_miss"]),
        )
        for case in CASES
    }


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_small_and_names_no_machine(case: str) -> None:
    """Host and process are taken out when it is recorded."""
    folder = TRACES / case
    headers = [json.loads(path.read_text()) for path in folder.glob("rank*.json")]

    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    assert {header["host"] for header in headers} <= {"host0", None}
    assert {header["pid"] for header in headers} == {UNKNOWN}


@pytest.mark.parametrize("case", CASES)
def test_a_summary_names_no_finding_that_is_not_there(case: str) -> None:
    """Whoever reads "FD401 says why" looks for FD401."""
    findings, _ = judged(case)
    said = {code for f in findings for code in re.findall(r"FD\d+", f.summary)}
    assert said <= {finding.code for finding in findings}
