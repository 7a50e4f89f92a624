"""The zoo's table: makes tests/zoo/README.md.

python -m tests.zoo.page > tests/zoo/README.md
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.zoo.catalogue import ENTRIES, ROWS, UNTOLD, reports
from tests.zoo.entry import Entry, Untold

README = Path(__file__).parent / "README.md"

HEAD = """# A zoo of faults

Each public report of the catalogue in [docs/detectors.md](../../docs/detectors.md), and
how it is told here: as a **rehearsal** (a small job, run as rank 0 on modelled GPUs),
**drawn** (a timeline, as `fsdpdoctor.testing` draws it), or by **ranks** (real
processes over gloo). What has to be found is what the report's author found to be the
cause, written down before the job was run. Every entry has a twin: the same job with
the report's cure, of which nothing of the kind may be said, and nothing else at warning
or above but what is true of it all the same (last column).

    pytest tests/zoo                    # the fast group
    pytest -m slow tests/zoo            # all others
    python -m tests.benchmarks.zoo      # all, with precision, recall and misses

Made by `python -m tests.zoo.page > tests/zoo/README.md`; a test fails where it is
stale.
"""

COLUMNS = (
    "| entry | report | what its author found | told | has to be found "
    "| of the twin is true all the same |"
)


def page() -> str:
    """All of it."""
    told = (
        f"{len(ENTRIES)} of {len(reports())} reports are told, {len(UNTOLD)} are not."
    )
    rows = [
        COLUMNS,
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(row) for row in ROWS),
    ]
    return "\n".join([HEAD, told, "", *rows, ""])


def _row(row: Entry | Untold) -> str:
    report = reports()[row.number]
    link = f"[{_cell(report.title) or report.link}]({report.link})"
    if not report.link.startswith("http"):
        link = _cell(report.link)
    if isinstance(row, Untold):
        return f"| {row.number} | {link} |  | no | {_cell(row.why)} |  |"
    still = "; ".join(f"{code}: {why}" for code, why in sorted(row.still.items()))
    return (
        f"| {row.number} | {link} | {_cell(row.why)} | {row.told} | {wanted(row)} "
        f"| {_cell(still)} |"
    )


def wanted(row: Entry) -> str:
    """What has to be found, in words."""
    if not row.codes:
        return "nothing: it is well"
    words = [" or ".join(row.codes)]
    if row.units:
        words.append(f"of {', '.join(f'`{unit}`' for unit in row.units)}")
    if row.ranks:
        words.append(f"of rank {', '.join(map(str, row.ranks))}")
    if not row.least:
        words.append("(or as information)")
    return " ".join(words)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.stdout.write(page())
