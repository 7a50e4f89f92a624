"""From when to when a unit was unsharded, as labels show it."""

from __future__ import annotations

from pathlib import Path

from fsdpdoctor.schema import (
    Evidence,
    Flag,
    Lane,
)
from tests.importers.drawn_trace import (
    AUTOGRAD,
    DrawnTrace,
)
from tests.importers.kineto.drawn_step import (
    fsdp2_step,
    host_step,
    imported,
    on_lane,
    told,
    unshard,
)


def test_unshard_windows(tmp_path: Path) -> None:
    """From the copy-out's end until all that was launched before the reshard is done:
    after forward where a gather in backward explains that, else after backward.
    """
    trace = fsdp2_step()
    trace.host("FSDP::post_backward_reshard", 243, 244, tid=AUTOGRAD)
    data = imported(trace, tmp_path)
    windows = on_lane(data, Lane.UNSHARDED)

    assert told(data, windows) == [
        ("UNSHARDED", "<root>", "FORWARD", 105.0, 402.0),
        ("UNSHARDED", "layers.0", "FORWARD", 155.0, 200.0),
        ("UNSHARDED", "layers.0", "BACKWARD", 260.0, 340.0),
    ]
    assert windows.bytes.tolist() == [4000, 4000, 4000]
    assert Evidence.WINDOWS in data.evidence


def test_windows_that_labels_do_not_show(tmp_path: Path) -> None:
    """A unit that is never seen resharded: no windows at all, rather than some."""
    data = imported(fsdp2_step(), tmp_path)

    assert Evidence.WINDOWS not in data.evidence
    assert len(on_lane(data, Lane.UNSHARDED)) == 0


def test_a_gather_that_nobody_used(tmp_path: Path) -> None:
    """A prefetched unit without a pass is held until the end of backward, flagged."""
    trace = DrawnTrace()
    trace.host("ProfilerStep#0", 0, 300)
    unshard(trace, " (layers.1)", 20, runs=40, took=10)
    trace.device("gemm", 60, 90, launched=50)
    trace.host("FSDP::root_post_backward_callback", 100, 110)
    data = imported(trace, tmp_path)
    windows = on_lane(data, Lane.UNSHARDED)

    assert told(data, windows) == [("UNSHARDED", "layers.1", "OTHER", 50.0, 90.0)]
    assert windows.flags.tolist() == [Flag.MANUAL | Flag.NEVER_USED]


def test_windows_where_the_host_computes(tmp_path: Path) -> None:
    """From the copy-out's end to the end of the hook that reshards."""
    data = imported(host_step(), tmp_path)

    assert told(data, on_lane(data, Lane.UNSHARDED)) == [
        ("UNSHARDED", "layers.0", "FORWARD", 75.0, 152.0),
        ("UNSHARDED", "layers.0", "BACKWARD", 205.0, 304.0),
    ]
