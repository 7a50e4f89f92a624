"""What torch.compile has done, read from dynamo's own counts; never imports it."""

from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple

REASONS = 20
"""Told of each kind; a job that has more is told the first."""

LONGEST = 160
"""Characters of a reason."""


class CompileCounts(NamedTuple):
    """Since the process started, or since an earlier count."""

    graph_breaks: int
    recompiles: int  # of frames that had been compiled before
    compile_ns: int | None  # spent compiling; None: this torch does not say

    def since(self, before: CompileCounts) -> CompileCounts:
        """What came after; all of it where dynamo has been reset meanwhile."""
        if self.recompiles < before.recompiles:
            return self
        compile_ns = self.compile_ns
        if compile_ns is not None:
            compile_ns = max(compile_ns - (before.compile_ns or 0), 0)
        return CompileCounts(
            graph_breaks=max(self.graph_breaks - before.graph_breaks, 0),
            recompiles=self.recompiles - before.recompiles,
            compile_ns=compile_ns,
        )


NOTHING_COMPILED = CompileCounts(graph_breaks=0, recompiles=0, compile_ns=None)


def compile_counts() -> CompileCounts | None:
    """How often it broke a graph or compiled again; None: it compiled nothing.

    Seen in torch 2.6 to 2.13: `utils.counters["graph_break"]`, by reason,
    `utils.compilation_time_metrics`, by what took the time, and
    `convert_frame.FRAME_COMPILE_COUNTER`, by frame.
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    frames: Any = sys.modules.get("torch._dynamo.convert_frame")
    compiled = getattr(frames, "FRAME_COMPILE_COUNTER", None)
    counters = getattr(utils, "counters", None)
    if not compiled or counters is None:
        return None
    return CompileCounts(
        graph_breaks=sum(counters.get("graph_break", {}).values()),
        recompiles=sum(times - 1 for times in compiled.values()),
        compile_ns=_compile_ns(getattr(utils, "compilation_time_metrics", None)),
    )


def _compile_ns(metrics: Any) -> int | None:
    if not isinstance(metrics, dict):
        return None
    whole = [times for name, times in metrics.items() if "compile_inner" in name]
    return round(sum(sum(times) for times in whole) * 1e9) if whole else None


def graph_break_reasons() -> dict[str, int]:
    """How often a graph broke, by dynamo's own reason."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    counted = getattr(utils, "counters", {}).get("graph_break", {})
    found: dict[str, int] = {}
    for reason, times in list(counted.items())[:REASONS]:
        said = _first_line(str(reason))
        found[said] = found.get(said, 0) + times
    return found


def recompile_reasons() -> dict[str, int]:
    """How often something was compiled again, by what no longer held.

    Dynamo keeps the latest compilations; what it dropped was told before.
    """
    utils: Any = sys.modules.get("torch._dynamo.utils")
    latest = getattr(utils, "get_compilation_metrics", None)
    if latest is None:
        return {}
    found: dict[str, int] = {}
    for one in latest():
        reason = getattr(one, "recompile_reason", None)
        if not reason:
            continue
        said = _guard(str(reason))
        if said in found or len(found) < REASONS:
            found[said] = found.get(said, 0) + 1
    return found


def _guard(reason: str) -> str:
    """A guard without the cache entry before it, the user's source behind it, and the
    values, which are others each time.
    """
    said = re.sub(r"^\d+/\d+: ", "", _first_line(reason).partition("  #")[0]).strip()
    return re.sub(r"(expected|actual|==|requires_grad=) ?-?[\d.]+", r"\1 ...", said)


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:LONGEST]
