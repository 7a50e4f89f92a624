"""FD304, cpu-offload."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.cpu_offload import cpu_offload
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without

SLOW = """
    forward    0000......
    optimizer  ....xxxxxx
"""
QUICK = """
    forward    000000000000000000000000
    optimizer  ........................x
"""


def run(offload: str | None, picture: str = SLOW) -> Measures:
    """One unit, offloaded or not."""
    return measured(draw(picture, CUDA, units=(unit("layers.0", offload=offload),)))


def test_the_optimizer_on_the_host_takes_most_of_the_step() -> None:
    """6 of 10 ms; without offload each rank needs four times its shard."""
    finding = only(cpu_offload, run("cpu-pinned"))

    assert finding.severity == Severity.WARNING
    assert finding.units == ("layers.0",)
    assert finding.cost_ns_per_step == 6 * MS
    assert finding.cost_bytes == 8 << 20
    assert codes(finding) == []


def test_pageable_memory_blocks() -> None:
    """Even where the optimizer is quick; the code pins it."""
    finding = only(cpu_offload, run("cpu", QUICK))

    assert finding.severity == Severity.INFO
    assert "CPUOffloadPolicy(pin_memory=True)" in codes(finding)[0]


LATE = """
    memcpy      0000................
    issue       ....0...............
    all_gather  ....00..............
    wait        000000..............
    forward     ......00000000000000
"""


def test_gathers_that_come_late_behind_pageable_copies_are_its_cost() -> None:
    """4 of 20 ms until the gather could be issued; its own 2 ms are not the copy's."""
    finding = only(cpu_offload, run("cpu", LATE))

    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 4 * MS
    assert "gathers come 4.00 ms late behind copies from pageable" in finding.summary
    assert found(cpu_offload, run("cpu-pinned", LATE)) == []


def test_cheap_or_no_offload_is_no_finding() -> None:
    """Pinned, with a quick optimizer; or on the device."""
    assert found(cpu_offload, run("cpu-pinned", QUICK)) == []
    assert found(cpu_offload, run(None)) == []


def test_on_cpu_and_without_policy_it_cannot_tell() -> None:
    """No device to offload from; or the policy is not known."""
    units = (unit("layers.0", offload="cpu"),)
    here = draw(SLOW, units=units)
    bare = draw(SLOW, CUDA, evidence=without(RECORDED, Evidence.CONFIG))

    for data in (here, bare):
        assert not_judged(cpu_offload, measured(data)).needs == (Evidence.CONFIG,)
