"""What `tune` tried, predicted against measured, and the change to keep."""

from __future__ import annotations

import json
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fsdpdoctor.quantities import count, ms, percent
from fsdpdoctor.tune import MIN_RUNS, Row, Tuning, Verdict

KIND = "all_gather"
"""The exposed time that the table shows: what most changes are about."""

_BITS = {
    True: "the runs of the script as it is agree to the bit",
    False: "the script's own runs differ in bits: identical results cannot be judged",
    None: "no hash of parameters was found: identical results were not judged",
}


def show_tuning(tuning: Tuning, console: Console) -> None:
    """Print the table, then the change to keep with its code."""
    if tuning.withheld is not None:
        _print(console, tuning.withheld)
    console.print(_table(tuning))
    _print(console, f"\n{_BITS[tuning.deterministic]}")
    if tuning.stopped is not None:
        _print(console, f"stopped: {tuning.stopped}")
    kept = tuning.kept
    if kept is None or kept.candidate is None:
        _print(console, f"\nkeep: the script as it is; {_why_nothing(tuning)}")
        return
    base_ns, step_ns = tuning.baseline.step_ns, kept.step_ns
    assert base_ns is not None
    assert step_ns is not None
    _print(
        console,
        f"\nkeep: {kept.candidate.plan}: {ms(base_ns)} -> {ms(step_ns)} "
        f"({percent(1 - step_ns / base_ns)} less)",
    )
    for line in kept.candidate.code.splitlines():
        _print(console, f"    {line}")


def _why_nothing(tuning: Tuning) -> str:
    """A change that was faster once may be so by chance: it is not said to be slow."""
    once = next((r for r in tuning.rows if r.verdict is Verdict.FASTER), None)
    if once is None or once.candidate is None:
        return "no change was measurably faster"
    return (
        f"{once.candidate.plan} was faster, but ran {count(len(once.measured), 'time')}"
        f" of the {MIN_RUNS} that it takes to say so: more --max-runs or --minutes"
    )


def _print(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)


def _table(tuning: Tuning) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("change")
    for name in (
        "predicted",
        "+-",
        "measured",
        "+-",
        "exposed gathers\npredicted",
        "\nmeasured",
        "runs",
    ):
        table.add_column(name, justify="right")
    table.add_column("bits")
    table.add_column("result")
    for row in (tuning.baseline, *tuning.rows):
        table.add_row(*_cells(row, tuning))
    return table


def _cells(row: Row, tuning: Tuning) -> list[str]:
    candidate = row.candidate
    prediction = None if candidate is None else candidate.prediction
    return [
        "as it is" if candidate is None else str(candidate.plan),
        "" if prediction is None else ms(prediction.step_ns),
        "" if prediction is None else ms(prediction.error_ns),
        _ms(row.step_ns),
        ms(row.noise_ns) if len(row.measured) > 1 else "",
        "" if prediction is None else ms(prediction.exposed_ns[KIND]),
        _ms(row.exposed_ns(KIND)),
        str(len(row.runs)),
        _bits(row, tuning),
        "" if candidate is None else _result(row),
    ]


def _ms(value: int | None) -> str:
    return "" if value is None else ms(value)


def _bits(row: Row, tuning: Tuning) -> str:
    if row.candidate is None or not row.measured or not tuning.deterministic:
        return ""
    wanted = tuning.baseline.measured[0].bits
    if all(run.bits == wanted for run in row.measured):
        return "same"
    return "other" if row.candidate.same_bits else "other, as expected"


def _result(row: Row) -> str:
    if row.verdict is Verdict.FAILED:
        return f"failed: {row.failure}"
    if row.verdict is Verdict.OTHER_BITS:
        return "dropped: other bits, though the change promises the same"
    return str(row.verdict)


def encode_tuning(tuning: Tuning) -> str:
    """The JSON of `tune --json`."""
    kept = tuning.kept
    content = {
        "schema_version": 1,
        "withheld": tuning.withheld,
        "stopped": tuning.stopped,
        "deterministic": tuning.deterministic,
        "baseline": _row(tuning.baseline),
        "candidates": [_row(row) for row in tuning.rows],
        "kept": None if kept is None else _row(kept),
    }
    return json.dumps(content, indent=2) + "\n"


def _row(row: Row) -> dict[str, Any]:
    said: dict[str, Any] = {
        "step_ns": row.step_ns,
        "noise_ns": round(row.noise_ns),
        "runs_ns": [run.step_ns for run in row.measured],
        "exposed_ns": {
            kind: row.exposed_ns(kind)
            for kind in (row.measured[0].exposed_ns if row.measured else ())
        },
        "bits": [list(run.bits) for run in row.measured],
    }
    if row.candidate is None:
        return said
    prediction = row.candidate.prediction
    return said | {
        "plan": row.candidate.plan.changes,
        "summary": str(row.candidate.plan),
        "verdict": str(row.verdict),
        "failure": row.failure,
        "promises_same_bits": row.candidate.same_bits,
        "predicted": None
        if prediction is None
        else {
            "step_ns": prediction.step_ns,
            "error_ns": prediction.error_ns,
            "exposed_ns": dict(prediction.exposed_ns),
            "memory_cost_bytes": prediction.memory_cost_bytes,
        },
    }
