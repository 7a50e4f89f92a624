"""HTA's figures beside ours, on every public trace.

    python -m tests.benchmarks.hta /path/to/hta/bin/python [...]

Each python is of an environment with HTA (`pip install HolisticTraceAnalysis==0.5.0
'pandas<3'`, or `traceinsight`, as it is called now). Writes `hta-results.md`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fsdpdoctor.errors import InputError
from fsdpdoctor.integrations.hta import (
    PYTHON,
    Compared,
    HtaTables,
    compared,
    hta_tables,
)
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.quantities import ms

RESULTS = Path(__file__).with_name("hta-results.md")
TRACES = Path(__file__).parents[3] / "shared" / "traces"

HEAD = """\
# HTA's figures beside ours

    python -m tests.benchmarks.hta /path/to/hta/bin/python

Overlap is the part of communication that ran under compute, idle the time in which no
kernel ran, both of the whole capture. Where the two tools differ, our own kernels are
counted once more by HTA's rules; only where that gives HTA's figures (overlap as it
prints it, idle to 0.1 % of the capture) a difference is called explained.

| traces | rank | overlap | HTA's | idle | HTA's | alike |
|---|---|---|---|---|---|---|
"""


def folders() -> Iterator[Path]:
    """Those with traces of torch.profiler."""
    for file in sorted(TRACES.rglob("*.json.gz")):
        yield file.parent


def rows(folder: Path) -> Iterator[str]:
    """One for each rank; first HTA's version."""
    run = open_paths((folder,), ReadOptions(cache=False))
    name = str(folder.relative_to(TRACES))
    tables = hta_tables(run)
    yield tables.version
    ranks = compared(run, tables)
    for one in ranks:
        alike = _alike(one, tables)
        yield f"| {name} | {one.rank} | {_figures(one)} | {alike} |"
    if not ranks:
        made = ", ".join(sorted(tables.errors)) or "none"
        yield f"| {name} | | | | | | no kernels; HTA fails at {made} |"


def _words(error: InputError) -> str:
    """Without where the traces lie on this machine."""
    return str(error).replace(f"{TRACES}/", "")


def _figures(one: Compared) -> str:
    shares = [
        "-" if share is None else f"{100 * share:.2f} %"
        for share in (one.ours.share, one.share)
    ]
    idle = ["-" if ns is None else ms(ns) for ns in (one.ours.idle_ns, one.idle_ns)]
    return " | ".join((*shares, *idle))


def _alike(one: Compared, tables: HtaTables) -> str:
    if one.explained is None:
        failed = ", ".join(f"{at}: {error}" for at, error in tables.errors.items())
        return f"HTA made none ({failed})"
    if not one.explained:
        return "no, and not explained"
    return "; ".join(one.because) or "yes"


def main(pythons: list[str]) -> None:
    """All traces, with each python."""
    text = HEAD
    for python in pythons:
        os.environ[PYTHON] = python
        version = ""
        lines: list[str] = []
        for folder in dict.fromkeys(folders()):
            try:
                version, *more = rows(folder)
                lines += more
            except InputError as error:
                lines.append(f"| {folder.name} | | | | | | not read: {_words(error)} |")
        text += f"| **{version}** | | | | | | |\n" + "\n".join(lines) + "\n"
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
