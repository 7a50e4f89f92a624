"""HolisticTraceAnalysis's tables as JSON: runs in the environment that has it.

A script of its own, which imports nothing of ours: HTA asks for a pandas and a numpy
that the environment of the training need not have. It prints much, as it is imported
and as it works; of that nothing is shown.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import sys
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

NS = 1000
"""Nanoseconds in a microsecond, which HTA's times are."""

Row = dict[str, Any]


def tables(files: dict[int, str]) -> dict[str, Any]:
    """Each table, or the error of HTA's that there is in its place."""
    from hta import trace_analysis

    errors: dict[str, str] = {}
    try:
        # Else it leaves out each trace's last step.
        analysis = trace_analysis.TraceAnalysis(
            trace_files=files, include_last_profiler_step=True
        )
    except Exception as error:  # whatever a foreign library raises of a foreign file
        return {"version": _version(), "errors": {"load": _words(error)}}
    found: dict[str, Any] = {}
    for name, make in _TABLES.items():
        try:
            found[name] = make(analysis)
        except Exception as error:  # the same: the other tables may be made
            errors[name] = _words(error)
    return {**found, "version": _version(), "errors": errors}


def _version() -> str:
    """Of the package that `hta` comes from: it has had two names."""
    import hta

    for name in ("traceinsight", "HolisticTraceAnalysis"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = metadata.distribution(name)
            if str(found.locate_file("hta/__init__.py")) == hta.__file__:
                return f"{name} {found.version}"
    return "hta of an unknown version"


def _overlap(analysis: Any) -> list[Row]:
    table = analysis.get_comm_comp_overlap(visualize=False)
    return [
        {"rank": int(rank), "share": None if math.isnan(share) else share / 100}
        for rank, share in zip(
            table["rank"], map(float, table["comp_comm_overlap_pctg"]), strict=True
        )
    ]


def _kernel_types(analysis: Any) -> list[Row]:
    table, _ = analysis.get_gpu_kernel_breakdown(
        visualize=False, num_kernels=1, include_memory_kernels=True
    )
    return [
        {"kind": str(kind), "ns": round(float(us) * NS)}
        for kind, us in zip(table["kernel_type"], table["sum"], strict=True)
    ]


def _busy(analysis: Any) -> list[Row]:
    table = analysis.get_temporal_breakdown(visualize=False)
    return [
        {
            "rank": int(row["rank"]),
            "idle_ns": round(float(row["idle_time(us)"]) * NS),
            "capture_ns": round(float(row["kernel_time(us)"]) * NS),
        }
        for row in table.to_dict("records")
    ]


def _idle(analysis: Any) -> list[Row]:
    ranks = sorted(analysis.t.get_all_traces())
    found, _ = analysis.get_idle_time_breakdown(ranks=ranks, visualize=False)
    return [
        {
            "rank": int(row["rank"]),
            "stream": int(row["stream"]),
            "category": str(row["idle_category"]),
            "ns": round(float(row["idle_time"]) * NS),
        }
        for row in found.reset_index().to_dict("records")
    ]


def _queue(analysis: Any) -> list[Row]:
    ranks = sorted(analysis.t.get_all_traces())
    table = analysis.get_queue_length_summary(ranks=ranks)
    table.columns = [column[-1] for column in table.columns]
    return [
        {
            "rank": int(row["rank"]),
            "stream": int(row["stream"]),
            "mean": float(row["mean"]),
            "most": float(row["max"]),
        }
        for row in table.reset_index().to_dict("records")
    ]


_TABLES: dict[str, Callable[[Any], list[Row]]] = {
    "overlap": _overlap,
    "kernel_types": _kernel_types,
    "busy": _busy,
    "idle": _idle,
    "queue": _queue,
}


def _words(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def main() -> None:
    """Files by rank as JSON on stdin; the tables as JSON on stdout."""
    sys.path.pop(0)  # this folder, whose modules have names that others have, too
    files = {int(rank): path for rank, path in json.load(sys.stdin).items()}
    answer = os.dup(1)
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 1)  # of its processes, too
        os.dup2(nowhere.fileno(), 2)
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        with contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            found = tables(files)
    os.write(answer, json.dumps(found).encode())


if __name__ == "__main__":
    main()
