"""Runs that look alike at first sight, and are told apart by one detector each."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import UnitSpec
from fsdpdoctor.testing import TRACED, draw, measured, unit
from tests.detectors.answers import CUDA


def warnings(m: Measures) -> set[str]:
    """The codes that are a warning or worse."""
    return {f.code for f in judge_all(m)[0] if f.severity >= Severity.WARNING}


def codes(m: Measures) -> set[str]:
    """All codes that were found."""
    return {finding.code for finding in judge_all(m)[0]}


def one(picture: str, *units: UnitSpec) -> Measures:
    """One rank on a device."""
    return measured(draw(picture, CUDA, units=units or None))


def test_idle_at_the_start_of_a_step() -> None:
    """The loader, the first all-gather, or the optimizer before it."""
    loader = "input xxxx..................\nforward ....000000000000000000"
    gather = """
        all_gather  0000..................
        wait        0000..................
        forward     ....000000000000000000
    """
    optimizer = "optimizer xxxx..................\nforward ....000000000000000000"

    assert warnings(one(loader)) == {"FD402"}
    assert warnings(one(gather)) == set()
    assert "FD101" in codes(one(gather))
    assert warnings(one(optimizer)) == {"FD404"}


ROOT = unit("<root>", is_root=True, reshard_after_forward=False)
LAYER = unit("layers.0")


def test_many_all_gathers_of_one_unit() -> None:
    """Two forwards before one backward, and two micro-batches, are asked for."""
    several_forwards = """
        micro_batch          00000000000000000000000000
        all_gather           0...1.........1...........
        forward              .000000000000.............
        forward              ....11........11..........
        forward              .............0000000......
        backward_all_gather  ....................1.....
        backward             .....................11111
    """
    micro_batches = """
        micro_batch          00000000000011111111111111
        all_gather           0...1.......0...1.........
        forward              .000000.......0000000.....
        forward              .....11..........11.......
        backward_all_gather  .......1.............1....
        backward             ........1111..........1111
    """
    called_twice = """
        micro_batch          00000000000000000000000000
        all_gather           0...1....1................
        forward              .0000000000000000.........
        forward              .....11...11..............
        backward_all_gather  .................1........
        backward             ..................11111111
    """

    assert "FD107" not in codes(one(several_forwards, ROOT, LAYER))
    assert "FD107" not in codes(one(micro_batches, ROOT, LAYER))
    assert "FD107" in warnings(one(called_twice, ROOT, LAYER))


def test_all_gathers_that_take_long_under_compute() -> None:
    """Contention doubles a gather's time; what is not exposed is not reported."""
    hidden = """
        all_gather  0.1111111111111111...
        forward     .00000000000000000111
    """

    assert "FD101" not in codes(one(hidden))
    assert warnings(one(hidden)) == set()


def test_no_all_gather_at_all() -> None:
    """Replicated by its mesh, or not sharded: information, or critical."""
    replicated = unit(
        "layers.0",
        mesh="(replicate=2, shard=1)",
        replicate_group=0,
        gather_dtype="bfloat16",
    )
    plain = draw("optimizer xx......", CUDA, units=())

    assert codes(one("forward 00000000", replicated)) == {"FD501", "FD900"}
    assert "FD506" in warnings(measured(plain))


def test_a_trace_without_units_still_knows_its_exposed_time() -> None:
    """Stalls without names are findings without units."""
    picture = """
        kernel      x.....xxxxxxxxxx.......xxx
        all_gather  .xxxx...........xxxxxx....
        copy_out    .....x................x...
    """
    m = measured(draw(picture, CUDA, evidence=TRACED, units=()))

    found = [
        (f.units, f.cost_ns_per_step) for f in judge_all(m)[0] if f.code == "FD101"
    ]

    assert found == [((), 6 * MS), ((), 4 * MS)]


def test_grouped_and_nested_units_are_one_chain() -> None:
    """A group runs last in forward and first in backward, after the root."""
    units = (
        unit("<root>", is_root=True, backward_prefetch=(2,)),
        unit("layers.0"),
        unit("norm, output", backward_prefetch=(1,)),
    )
    picture = """
        forward   000000......
        forward   .11.........
        forward   ...22.......
        backward  ......222111
    """

    assert "FD105" not in codes(one(picture, *units))
