"""What torch.compile has done, read from dynamo's own counts; never imports it."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple


class CompileCounts(NamedTuple):
    """Since the process started."""

    graph_breaks: int
    recompiles: int  # of frames that had been compiled before


def compile_counts() -> CompileCounts | None:
    """How often it broke a graph or compiled again; None: it compiled nothing.

    Seen in torch 2.6 to 2.13: `utils.counters["graph_break"]`, by reason, and
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
    )
