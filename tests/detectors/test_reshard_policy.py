"""FD301, reshard-policy."""

from __future__ import annotations

from fsdpdoctor.detectors.reshard_policy import reshard_policy
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import GIB, MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence, GroupSpec, MemorySamples
from fsdpdoctor.testing import GROUP, RECORDED, draw, measured, unit
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without
from tests.rig.changed import replace

GATHERED_AGAIN = """
    all_gather           01..................
    forward              ..0011..............
    backward_all_gather  ......11............
    backward_wait        ......11............
    backward             ........111111100000
"""


def with_peak(data: RankData, peak_bytes: int, device_bytes: int) -> RankData:
    """The same rank, whose allocator reached a peak on a device of some size."""
    memory = MemorySamples.build(1, peak_bytes=peak_bytes)
    return replace(
        data,
        header=replace(data.header, device_bytes=device_bytes),
        steps=tuple(replace(record, memory=memory) for record in data.steps),
    )


def test_room_to_keep_what_backward_gathers_again() -> None:
    """2 of 20 ms at half of the device's memory: keep layers.1, for its 4 MiB."""
    data = with_peak(draw(GATHERED_AGAIN, CUDA), 40 * GIB, 80 * GIB)

    finding = only(reshard_policy, measured(data))

    assert finding.severity == Severity.WARNING
    assert finding.units == ("layers.1",)
    assert finding.phase == "backward"
    assert finding.cost_ns_per_step == 2 * MS
    assert finding.advice[0].memory_cost_bytes == 4 << 20
    assert "set_reshard_after_forward(False, recurse=False)" in codes(finding)[0]


STAGE = """
    all_gather           1...1...............
    wait                 1...1...............
    forward              .111.111............
    backward_all_gather  ........1...........
    backward_wait        ........1...........
    backward             .........11111111111
"""


def test_forwards_of_a_pipeline_gather_again_what_they_resharded() -> None:
    """Two forwards, then backward: the second forward's gather and backward's go."""
    data = with_peak(draw(STAGE, CUDA, micro_batches=2), 40 * GIB, 80 * GIB)

    finding = only(reshard_policy, measured(data))

    assert finding.cost_ns_per_step == 2 * MS
    assert finding.phase is None
    assert finding.summary.startswith(
        "gathering 1 unit again in backward and in a step's later forwards is exposed"
    )


def test_a_forward_after_a_backward_gathers_by_right() -> None:
    """What backward has resharded, no policy for forward keeps: one gather of two."""
    picture = """
        all_gather           1........1..........
        wait                 1........1..........
        forward              .11.......11........
        backward_all_gather  ...1........1.......
        backward_wait        ...1........1.......
        backward             ....11111....1111111
    """
    data = with_peak(draw(picture, CUDA, micro_batches=2), 40 * GIB, 80 * GIB)

    finding = only(reshard_policy, measured(data))

    assert (finding.phase, finding.cost_ns_per_step) == ("backward", 2 * MS)


def test_where_the_headroom_is_unknown_it_is_information() -> None:
    """A CPU run does not know its device's memory."""
    finding = only(reshard_policy, measured(draw(GATHERED_AGAIN)))

    assert finding.severity == Severity.INFO
    assert finding.evidence["peak_share_of_device"] is None


def test_only_the_last_units_that_fit_are_kept() -> None:
    """Room for one of two units: the one whose forward came last."""
    picture = GATHERED_AGAIN.replace("......11....", "......10....")
    units = tuple(unit(f"layers.{n}", unsharded_bytes=12 * GIB) for n in range(2))
    data = with_peak(draw(picture, CUDA, units=units), 70 * GIB, 100 * GIB)

    finding = only(reshard_policy, measured(data))

    assert finding.units == ("layers.0", "layers.1")
    assert 'keep = ["layers.1"]' in codes(finding)[0]
    assert finding.advice[0].memory_cost_bytes == 12 * GIB


def test_no_room_to_keep_units_gathered() -> None:
    """At 95 % of the device, layers.0 should reshard; its gathers stay hidden."""
    units = (unit("layers.0", reshard_after_forward=False),)
    data = with_peak(draw("forward 0", CUDA, units=units), 95 * GIB, 100 * GIB)

    finding = only(reshard_policy, measured(data))

    assert finding.severity == Severity.WARNING
    assert finding.cost_bytes == 4 << 20
    assert finding.advice[0].memory_cost_bytes == -(4 << 20)


def test_a_group_per_unit_for_an_integer_policy() -> None:
    """Two groups over the same two ranks, where one would do."""
    groups = (GROUP, *(GroupSpec(name=n, ranks=(0, 1), size=2) for n in "ab"))
    units = tuple(
        unit(f"layers.{at}", reshard_after_forward=2, post_forward_group=at + 1)
        for at in range(2)
    )

    finding = only(
        reshard_policy, measured(draw("forward 01", CUDA, units=units, groups=groups))
    )

    assert finding.evidence == {"groups": 2, "sets_of_ranks": 1}


def test_left_gathered_by_an_evaluation() -> None:
    """A window of a pass without gradients reaches the end of its step."""
    picture = """
        eval_forward    ..0000..
        eval_unsharded  ..000000
    """

    finding = only(reshard_policy, measured(draw(picture)))

    assert finding.units == ("layers.0",)
    assert finding.summary == (
        "1 unit stays gathered (0 B) after a pass without gradients"
    )
    assert codes(finding)[0].endswith("model.reshard()")


def test_a_model_that_never_trains_is_not_told_both() -> None:
    """Gathers cost 2 of 10 ms: it is to be kept gathered, which one unit is already."""
    picture = """
        eval_all_gather 01........
        eval_wait       01........
        eval_forward    ..00001111
        eval_unsharded  ..00000000
    """

    finding = only(reshard_policy, measured(draw(picture)))

    assert finding.advice[0].text.startswith("This model never trains: keep it")


def test_hidden_gathers_are_no_finding() -> None:
    """Backward gathers under compute, at half of the memory; nothing is left."""
    lines = GATHERED_AGAIN.splitlines()
    picture = "\n".join(line for line in lines if "backward_wait" not in line)
    data = with_peak(draw(picture, CUDA), 40 * GIB, 80 * GIB)

    assert found(reshard_policy, measured(data)) == []
    closed = "eval_forward ..0000..\neval_unsharded ..0000.."
    assert found(reshard_policy, measured(draw(closed))) == []


def test_without_policy_it_cannot_tell() -> None:
    """No unit says whether it reshards; or there are no windows."""
    units = (unit("layers.0", reshard_after_forward=None),)
    evidence = without(RECORDED, Evidence.WINDOWS)

    m = measured(draw("forward 0", units=units))
    assert not_judged(reshard_policy, m).needs == (Evidence.CONFIG,)
    m = measured(draw("forward 0", evidence=evidence))
    assert not_judged(reshard_policy, m).needs == (Evidence.WINDOWS,)
