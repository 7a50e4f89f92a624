"""FD107, duplicate-all-gather."""

from __future__ import annotations

from fsdpdoctor.detectors.duplicate_all_gather import duplicate_all_gather
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, unsized, without

UNITS = (
    unit("<root>", is_root=True, reshard_after_forward=False),
    unit("layers.0"),
)

CHECKPOINT_AROUND = """
    micro_batch          0000000000000000
    all_gather           01..............
    forward              .0000000........
    forward              ...1111.........
    recompute_all_gather .........11.....
    wait                 .........11.....
    recompute            ...........11...
    backward_all_gather  .............1..
    backward_wait        .............1..
    backward             ..............11
"""


def test_recomputation_gathers_twice_in_backward() -> None:
    """layers.0: once for the recomputed forward, once more for the backward."""
    finding = only(duplicate_all_gather, measured(draw(CHECKPOINT_AROUND, units=UNITS)))

    assert finding.units == ("layers.0",)
    assert finding.phase == "backward"
    assert finding.cost_bytes == 1 << 20
    assert finding.cost_ns_per_step == 1 * MS
    assert finding.severity == Severity.CRITICAL
    assert finding.evidence["why"] == "recompute"
    assert finding.evidence["units"] == [
        {
            "unit": "layers.0",
            "counted_per_step": 2.0,
            "expected_per_step": 1.0,
            "why": "recompute",
        }
    ]
    assert finding.advice[1].memory_cost_bytes == 4 << 20


def test_bytes_that_a_trace_does_not_tell_are_not_none() -> None:
    """The gather is told of without a size, not as one of 0 B."""
    drawn = unsized(draw(CHECKPOINT_AROUND, units=UNITS))

    finding = only(duplicate_all_gather, measured(drawn))

    assert finding.cost_bytes is None
    assert finding.summary.startswith(
        "1 all-gathers per step in backward repeat what was gathered already "
        "(1 unit, 1.00 ms exposed): "
    )


def test_a_loop_gathers_for_every_call() -> None:
    """layers.0 runs three times in one forward and reshards in between."""
    finding = only(
        duplicate_all_gather,
        measured(
            draw(
                """
                micro_batch          00000000000000000000
                all_gather           01...1...1..........
                forward              .00000000000000.....
                forward              ..11..11..11........
                backward_all_gather  ................1...
                backward             .................111
                """,
                units=UNITS,
            )
        ),
    )

    assert finding.phase == "forward"
    assert finding.evidence["duplicates_per_step"] == 2.0
    assert finding.evidence["why"] == "loop"
    assert finding.ranks == (0,)


def test_two_backwards_of_one_forward_gather_twice() -> None:
    """No loop of layers.0, which ran once: the losses have one each."""
    finding = only(
        duplicate_all_gather,
        measured(
            draw(
                """
                micro_batch          00000000000000000000
                all_gather           01..................
                forward              .000000.............
                forward              ...111..............
                backward_all_gather  .......1.....1......
                backward             ........11111.11111.
                """,
                units=UNITS,
            )
        ),
    )

    assert (finding.phase, finding.evidence["why"]) == ("backward", "backwards")
    assert finding.evidence["duplicates_per_step"] == 1.0
    assert [advice.text[:22] for advice in finding.advice] == ["Add the losses up, and"]


def test_recomputation_under_the_backwards_gather_is_no_finding() -> None:
    """Torch 2.13 gathers once, for the recomputed forward, and keeps it."""
    picture = "\n".join(
        line
        for line in CHECKPOINT_AROUND.splitlines()
        if "backward_all_gather" not in line and "backward_wait" not in line
    )

    assert found(duplicate_all_gather, measured(draw(picture, units=UNITS))) == []


def test_what_nothing_used_is_not_a_duplicate() -> None:
    """A stale window's gather belongs to FD105 and FD303."""
    m = measured(
        draw(
            """
            micro_batch          0000000000000000
            all_gather           01......1.......
            stale                .........111....
            forward              .0000000........
            forward              ...1111.........
            backward_all_gather  .............1..
            backward             ..............11
        """,
            units=UNITS,
        )
    )

    assert found(duplicate_all_gather, m) == []


def test_without_policy_or_windows_it_cannot_tell() -> None:
    """What is expected follows from the policy and the windows."""
    for absent in (Evidence.CONFIG, Evidence.WINDOWS):
        evidence = without(RECORDED, absent)
        m = measured(draw(CHECKPOINT_AROUND, units=UNITS, evidence=evidence))

        assert not_judged(duplicate_all_gather, m).needs == (absent,)


def test_the_advice_names_the_unit() -> None:
    """Keeping the duplicated unit gathered is offered for it alone."""
    finding = only(duplicate_all_gather, measured(draw(CHECKPOINT_AROUND, units=UNITS)))

    assert 'keep = ["layers.0"]' in codes(finding)[-1]
