"""FD106, comm-serialization."""

from __future__ import annotations

import numpy as np
import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.comm_serialization import comm_serialization
from fsdpdoctor.finding import Confidence, Finding, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence, GroupSpec, Kind
from fsdpdoctor.testing import RECORDED, TRACED, draw, measured
from tests.detectors.answers import CUDA, codes, found, not_judged, only
from tests.rig.changed import replace

QUEUED = """
    backward             1111......0000000000
    reduce_scatter       ..11111.............
    issue                ...0................
    backward_all_gather  .......000..........
    backward_wait        ....000000..........
"""


def test_an_all_gather_behind_a_reduce_scatter() -> None:
    """layers.0's gather waits 3 ms of its 6 for layers.1's reduction to end."""
    finding = only(comm_serialization, measured(draw(QUEUED, CUDA)))

    assert finding.units == ("layers.0",)
    assert finding.cost_ns_per_step == 3 * MS
    assert finding.severity == Severity.WARNING
    assert "model.set_separate_reduce_scatter_group(True)" in codes(finding)[0]


def test_a_torch_without_the_group_gets_no_code() -> None:
    """The finding stays, the call is not named."""
    m = measured(draw(QUEUED, CUDA), available=("unshard",))

    assert codes(only(comm_serialization, m)) == []


def test_one_connection_makes_streams_take_turns() -> None:
    """The variable alone is a warning, read from the run's environment."""
    environment = {"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}
    m = measured(draw("forward 00000000", CUDA, header=environment))

    assert only(comm_serialization, m).evidence == {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


AT_ONCE = QUEUED.replace(
    "backward_all_gather  .......000..........",
    "backward_all_gather  ...0000000..........",
)


def test_a_stream_that_comes_to_a_gather_does_not_run_it_yet() -> None:
    """The gather's stream is there at 3, its communicator's reduction ends at 7."""
    finding = only(comm_serialization, measured(draw(AT_ONCE, CUDA)))

    assert finding.cost_ns_per_step == 4 * MS
    assert finding.units == ("layers.0",)


def test_kernels_that_run_at_once_are_no_finding() -> None:
    """A trace's begin where their bytes do; nothing waited for anything."""
    evidence = (*RECORDED, Evidence.KERNELS)

    assert (
        found(comm_serialization, measured(draw(AT_ONCE, CUDA, evidence=evidence)))
        == []
    )


def test_a_gather_that_waits_for_gathers_is_no_finding() -> None:
    """A communicator of its own for reductions changes nothing there."""
    picture = """
        forward     00......11111111....
        issue       0.1.................
        all_gather  000001111...........
        wait        ..111111............
    """

    assert found(comm_serialization, measured(draw(picture, CUDA))) == []


ONE = {"environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}}


def test_what_cuda_will_do_is_said_without_a_gpu() -> None:
    """On CPU and on a modelled device: information, and a prediction."""
    for m in (
        measured(draw("forward 00000000", header=ONE)),
        measured(draw("forward 00000000", CUDA, header=ONE), source="rehearsal"),
    ):
        finding = only(comm_serialization, m)

        assert finding.severity == Severity.INFO
        assert finding.summary == (
            "on a GPU CUDA_DEVICE_MAX_CONNECTIONS=1 will make all streams of a device "
            "take turns: FSDP2's collectives will not run under compute that was "
            "launched before them"
        )
        assert finding.cost_ns_per_step is None


def test_one_connection_makes_no_difference_to_one_rank() -> None:
    """Nothing is sent: neither predicted, nor a warning on a device."""
    groups = (GroupSpec(name="s", ranks=(0,), size=1),)
    on_cpu, on_device = (
        measured(draw("forward 0", drawing, header=ONE, groups=groups))
        for drawing in (None, CUDA)
    )

    assert not_judged(comm_serialization, on_cpu).needs == (Evidence.ISSUE_TIMES,)
    assert found(comm_serialization, on_device) == []


def test_on_cpu_it_cannot_tell() -> None:
    """Nothing runs beside the host."""
    answer = not_judged(comm_serialization, measured(draw(QUEUED)))

    assert answer.needs == (Evidence.ISSUE_TIMES,)


HELD = """
    kernel      000....000.111
    all_gather  ..11111.......
    copy_out    ..........1...
"""


def launched(picture: str, *, late: bool = False) -> Measures:
    """A trace whose kernels were launched as their step began, or as they started."""
    data = draw(picture, CUDA, evidence=TRACED)
    steps = []
    for step in data.steps:
        spans = step.spans
        when = spans.start_ns if late else np.full(len(spans), step.start_ns)
        issued = np.where(spans.kind == Kind.KERNEL, when, spans.issued_ns)
        steps.append(replace(step, spans=replace(spans, issued_ns=issued)))
    return measured(replace(data, steps=tuple(steps)), source="kineto")


def queue_findings(m: Measures) -> list[Finding]:
    """What is said of one hardware queue."""
    return [f for f in found(comm_serialization, m) if "hardware queue" in f.summary]


def test_a_kernel_that_waits_for_nothing_is_held_by_a_queue() -> None:
    """layers.0's kernel starts as layers.1's gather ends, 4 ms after it could have."""
    (finding,) = queue_findings(launched(HELD))

    assert (finding.severity, finding.confidence) == (
        Severity.WARNING,
        Confidence.MEDIUM,
    )
    assert (finding.units, finding.cost_ns_per_step) == (("layers.1",), 4 * MS)
    assert finding.summary == (
        "within units' passes 1 kernel per step stood still for 4.00 ms (28.6 % of the "
        "step) until another unit's collective began or ended: they had been launched, "
        "and the trace shows nothing that they had to wait for, as where all streams "
        "share one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1)"
    )


def test_a_host_that_is_late_holds_it_itself() -> None:
    """The same gap, and the kernel is launched as it begins."""
    assert queue_findings(launched(HELD, late=True)) == []


@pytest.mark.parametrize(
    "picture",
    [
        # The copy-out waits for its gather, and the kernel for the copy-out.
        "kernel 000.....000\nall_gather ..11111....\ncopy_out .......1...",
        # Between two units lies what the second one waits for.
        "kernel 000....111\nall_gather ..11111...",
        # Something else ran in the gap, and may be what was waited for.
        "kernel 000....000\nall_gather ..11111...\nmemcpy ...xx.....",
        # It ends before the gather does, of something that is not seen.
        "kernel 000...0000\nall_gather ..111111..",
        # The unit's own gather: FSDP2 waits for that.
        "kernel 000....000\nall_gather ..00000...",
    ],
    ids=["copy-out", "border", "other", "not-at-once", "own"],
)
def test_what_may_be_waited_for_is_no_queue(picture: str) -> None:
    """Whatever it is, one queue is not proved by it."""
    assert queue_findings(launched(picture)) == []
