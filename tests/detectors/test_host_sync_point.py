"""FD104, host-sync-point."""

from __future__ import annotations

import pytest

from fsdpdoctor.detectors.host_sync_point import host_sync_point
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, draw, measured
from tests.detectors.answers import CUDA, found, not_judged, only, without

SYNC_IN_FORWARD = """
    sync        ..xxxx..............
    issue       ........1...........
    all_gather  ........11..........
    wait        ......1111..........
    forward     000000....1111111111
"""


def test_it_costs_what_starves_after_it() -> None:
    """The host waits 4 ms; the next gather is issued 2 ms after compute ran dry."""
    m = measured(draw(SYNC_IN_FORWARD, CUDA, names=("train.py:12 item",)))

    finding = only(host_sync_point, m)

    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 2 * MS
    assert finding.evidence["host_wait_ns"] == 4 * MS
    assert finding.evidence["where"] == "train.py:12 item"
    assert finding.summary == (
        "train.py:12 item makes the host wait 1 times and 4.00 ms per step; the "
        "device then stands still for 2.00 ms (10.0 % of the step)"
    )


def test_a_stall_after_several_calls_is_counted_once() -> None:
    """The same 2 ms, although two calls come before the gather."""
    picture = SYNC_IN_FORWARD.replace("..xxxx..", "..x.xx..")
    m = measured(draw(picture, CUDA, names=("train.py:12 item",)))

    finding = only(host_sync_point, m)

    assert finding.evidence["calls_per_step"] == 2.0
    assert finding.cost_ns_per_step == 2 * MS


def starved_ms(picture: str) -> list[float]:
    """What each line's calls cost per step, the costliest first."""
    names = ("loss.item", "count.tolist")
    m = measured(draw(picture, CUDA, names=names))
    costs = [f.cost_ns_per_step or 0 for f in found(host_sync_point, m)]
    return sorted((cost / MS for cost in costs), reverse=True)


@pytest.mark.parametrize(
    ("calls", "cost_ms"),
    [
        ("xxxxxx", [4]),  # issued before the wait, all of it would be hidden
        ("...xxx", [3]),
        (".....x", [1]),
    ],
)
def test_bytes_that_an_earlier_issue_would_have_hidden_are_its_cost(
    calls: str, cost_ms: list[int]
) -> None:
    """A layer reads a number at its end; the next gather moves while nothing runs."""
    assert (
        starved_ms(
            f"""
            sync        ....{calls}..............
            issue       0.........1.............
            all_gather  00........1111..........
            wait        00........1111..........
            forward     ..00000000....1111111111
            """
        )
        == cost_ms
    )


def test_calls_before_one_stall_share_it() -> None:
    """Two of two and three milliseconds: four of them are not counted twice."""
    m = measured(
        draw(
            """
            sync        .....xx.................
            sync        .......xxx..............
            issue       0.........1.............
            all_gather  00........1111..........
            wait        00........1111..........
            forward     ..00000000....1111111111
            """,
            CUDA,
            names=("loss.item",),
        )
    )

    assert only(host_sync_point, m).cost_ns_per_step == 4 * MS


@pytest.mark.parametrize(
    "picture",
    [
        # The next gather is under compute; a later one, issued in time, is not.
        """
            sync        .....xxx............
            issue       0.......12..........
            all_gather  00......112222......
            wait        00...........2......
            forward     ..0000000000..222222
        """,
        # Its lane moved other bytes while the host waited.
        """
            sync        .....xxxxx..............
            issue       01........2.............
            all_gather  001111111122............
            wait        00........22............
            forward     ..00000000..222222222222
        """,
    ],
)
def test_waits_for_bytes_that_a_call_did_not_keep_are_not_its_cost(
    picture: str,
) -> None:
    """The call costs nothing, however long it was."""
    assert starved_ms(picture) == [0]


FED_BY_HAND = """
    outer_sync  ......xxxxxx...x...x................
    forward     000000000000........................
    backward    ....................0000000000000000
"""


def test_calls_in_a_row_feed_the_device_by_hand() -> None:
    """The host was 6 ms ahead; then twice 3 ms pass between calls that wait for 1."""
    m = measured(draw(FED_BY_HAND, CUDA, names=("loss.item",)))

    finding = only(host_sync_point, m)

    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == 6 * MS
    assert finding.summary == (
        "loss.item makes the host wait 3 times and 8.00 ms per step, one time after "
        "the other: between them the device has only what the host gives it, for up "
        "to 6.00 ms (16.7 % of the step)"
    )


def test_a_trace_knows_what_ran_between_calls() -> None:
    """Its kernels say it, and a pass without a label would be taken for none."""
    evidence = (*RECORDED, Evidence.KERNELS)
    m = measured(draw(FED_BY_HAND, CUDA, names=("sync",), evidence=evidence))

    assert found(host_sync_point, m) == []


@pytest.mark.parametrize(
    "calls",
    [
        "......xxxxxx....................",  # one call alone
        "...........x...x...x............",  # the host was hardly ahead
        "......xxxxxx..xxxx..xxxx........",  # the device had more to do than was given
    ],
)
def test_calls_that_cost_no_lead_are_no_finding(calls: str) -> None:
    """Nothing could have been hidden, or the device was busy meanwhile."""
    picture = FED_BY_HAND.replace("......xxxxxx...x...x................", calls)

    assert found(host_sync_point, measured(draw(picture, CUDA))) == []


def test_at_the_end_of_a_step_it_is_information() -> None:
    """The same call outside forward and backward."""
    picture = SYNC_IN_FORWARD.replace("sync        ", "outer_sync  ")
    m = measured(draw(picture, CUDA, names=("train.py:12 item",)))

    assert only(host_sync_point, m).severity == Severity.INFO


def test_a_call_that_starves_nothing_is_no_finding() -> None:
    """0.2 ms of waiting in a step of 20, and the next gather is hidden."""
    m = measured(
        draw(
            """
            outer_sync  xx..................
            issue       ..1.................
            all_gather  ..11................
            forward     00000000001111111111
        """,
            CUDA,
            names=("train.py:12 item",),
        )
    )

    assert found(host_sync_point, m) == []


def test_on_cpu_and_without_calls_it_cannot_tell() -> None:
    """No device to wait for, or no record of the calls."""
    bare = draw(SYNC_IN_FORWARD, CUDA, evidence=without(RECORDED, Evidence.SYNC_CALLS))

    assert not_judged(host_sync_point, measured(draw(SYNC_IN_FORWARD))).needs == (
        Evidence.SYNC_CALLS,
    )
    assert not_judged(host_sync_point, measured(bare)).needs == (Evidence.SYNC_CALLS,)
