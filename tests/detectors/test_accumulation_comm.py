"""FD108, accumulation-comm."""

from __future__ import annotations

from fsdpdoctor.detectors.accumulation_comm import accumulation_comm
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import UNKNOWN, Evidence, GroupSpec
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, unsized, without
from tests.rig.changed import replace

EVERY_TIME = """
    backward        0000.0000.0000.0000.
    reduce_scatter  ....0....0....0....0
    rs_wait         ....0....0....0....0
"""
ONCE = """
    backward        0000.0000.0000.0000.
    reduce_scatter  ...................0
    rs_wait         ...................0
"""


def test_reductions_in_every_micro_batch() -> None:
    """Four of 1 ms in a step of 20, of which three can go."""
    finding = only(accumulation_comm, measured(draw(EVERY_TIME, micro_batches=4)))

    assert finding.units == ("layers.0",)
    assert finding.phase == "backward"
    assert finding.cost_ns_per_step == 3 * MS
    assert finding.cost_bytes == 3 << 20
    assert finding.severity == Severity.CRITICAL
    assert finding.evidence["reduce_scatters_per_step"] == 4.0
    assert finding.advice[0].memory_cost_bytes == 4 << 20
    assert (
        "set_requires_gradient_sync(micro_batch == micro_batches - 1)"
        in (codes(finding)[0])
    )


def test_sizes_that_a_trace_does_not_tell_are_not_none() -> None:
    """Neither is what need not be sent 0 B, nor do whole gradients cost no memory."""
    units = (replace(unit("layers.0"), trainable_numel=UNKNOWN),)
    drawn = unsized(draw(EVERY_TIME, micro_batches=4, units=units))

    finding = only(accumulation_comm, measured(drawn))

    assert finding.cost_ns_per_step == 3 * MS
    assert finding.cost_bytes is None
    assert finding.advice[0].memory_cost_bytes is None


def test_with_hsdp_the_all_reduce_comes_first() -> None:
    """Reducing over replicas once costs no memory."""
    picture = EVERY_TIME + "    all_reduce      ....0....0....0....0\n"

    finding = only(accumulation_comm, measured(draw(picture, micro_batches=4)))

    assert "set_requires_all_reduce" in codes(finding)[0]
    assert finding.advice[0].memory_cost_bytes == 0


def test_an_all_reduce_on_the_last_one_alone_is_not_held_against_it() -> None:
    """Hidden reduce-scatters within a host, each time; what waits has to be there."""
    picture = EVERY_TIME.replace("rs_wait         ....0....0....0....0", "") + (
        "    all_reduce      ...................0\n"
        "    ar_wait         ...................0\n"
    )

    assert found(accumulation_comm, measured(draw(picture, micro_batches=4))) == []


def test_reductions_within_each_host_do_not_cross_hosts() -> None:
    """Hidden ones of two replicas, each on a host of its own."""
    picture = "\n".join(x for x in EVERY_TIME.splitlines() if "rs_wait" not in x)
    ranks = []
    for at, host in enumerate(("a", "a", "b", "b")):
        shard = (0, 1) if host == "a" else (2, 3)
        group = GroupSpec(name=host, role="shard", size=2, ranks=shard)
        data = draw(picture, micro_batches=4, rank=at, groups=(group,))
        ranks.append(replace(data, header=replace(data.header, host=host)))

    assert found(accumulation_comm, measured(*ranks)) == []


def test_reducing_once_is_no_finding() -> None:
    """Synchronised on the last micro-batch, or a step of one micro-batch."""
    assert found(accumulation_comm, measured(draw(ONCE, micro_batches=4))) == []
    assert found(accumulation_comm, measured(draw(ONCE, micro_batches=1))) == []


def test_hidden_reductions_on_one_host_are_better_kept() -> None:
    """Nothing is exposed, and each saves the memory of unsharded gradients."""
    picture = "\n".join(x for x in EVERY_TIME.splitlines() if "rs_wait" not in x)

    assert found(accumulation_comm, measured(draw(picture, micro_batches=4))) == []


def test_hidden_reductions_across_hosts_are_reported() -> None:
    """Between hosts the bytes themselves matter."""
    picture = "\n".join(x for x in EVERY_TIME.splitlines() if "rs_wait" not in x)
    one = draw(picture, micro_batches=4)
    two = draw(picture, micro_batches=4, rank=1)
    elsewhere = replace(two, header=replace(two.header, host="other"))

    finding = only(accumulation_comm, measured(one, elsewhere))

    assert finding.severity == Severity.WARNING
    assert finding.evidence["hosts"] == 2


def test_without_micro_batches_it_cannot_tell() -> None:
    """Neither a source without them nor a step that did not count them."""
    evidence = without(RECORDED, Evidence.MICRO_BATCHES)

    for m in (
        measured(draw(EVERY_TIME, evidence=evidence)),
        measured(draw(EVERY_TIME, micro_batches=UNKNOWN)),
    ):
        assert not_judged(accumulation_comm, m).needs == (Evidence.MICRO_BATCHES,)
