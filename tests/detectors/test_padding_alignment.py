"""FD204, padding-alignment."""

from __future__ import annotations

from fsdpdoctor.detectors.padding_alignment import padding_alignment
from fsdpdoctor.finding import Severity
from fsdpdoctor.schema import UNKNOWN, Evidence, GroupSpec, ParamSpec
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without

NARROW = ParamSpec(
    fqn="layers.0.gate.weight",
    shape=(3, 64),
    dtype="float32",
    trainable=True,
    shard_dim=0,
    local_numel=0,
    padded_local_numel=64,
)


def test_a_dimension_smaller_than_the_ranks() -> None:
    """A fifth of layers.0 is padding, and this rank holds none of the gate."""
    units = (
        unit("layers.0", unsharded_bytes=1024, padding_bytes=200, params=(NARROW,)),
        unit("layers.1", unsharded_bytes=1024),
    )

    finding = only(padding_alignment, measured(draw("forward 01", units=units)))

    assert finding.units == ("layers.0",)
    assert finding.severity == Severity.WARNING
    assert finding.cost_bytes == 200
    assert finding.evidence["empty_ranks"] == {"layers.0.gate.weight": 1}
    assert finding.advice[0].memory_cost_bytes == -200
    assert "def shard_where_even(param, ranks=2)" in codes(finding)[0]


def test_padding_of_a_small_unit_is_information() -> None:
    """A tenth of one unit, and nothing beside the other."""
    units = (
        unit("layers.0", unsharded_bytes=1024, padding_bytes=100),
        unit("layers.1", unsharded_bytes=1 << 20),
    )

    finding = only(padding_alignment, measured(draw("forward 01", units=units)))

    assert finding.severity == Severity.INFO


def test_little_padding_is_no_finding() -> None:
    """One per cent."""
    units = (unit("layers.0", unsharded_bytes=1024, padding_bytes=10),)

    assert found(padding_alignment, measured(draw("forward 0", units=units))) == []


def test_an_unaligned_gather_is_held_against_an_aligned_one() -> None:
    """Half the bandwidth of an aligned unit of like size, on NCCL only."""
    units = (unit("layers.0", unsharded_bytes=3200), unit("layers.1"))
    units = (units[0], unit("layers.1", unsharded_bytes=3204))
    picture = """
        all_gather  0.11
        forward     00.0
    """
    nccl = GroupSpec(name="shard", ranks=(0, 1), size=2, backend="nccl")

    finding = only(
        padding_alignment, measured(draw(picture, CUDA, units=units, groups=(nccl,)))
    )

    assert finding.units == ("layers.1",)
    assert finding.evidence["remainder"] == 2
    assert found(padding_alignment, measured(draw(picture, CUDA, units=units))) == []


def test_without_padding_it_cannot_tell() -> None:
    """A source that does not know the padded sizes."""
    units = (unit("layers.0", padding_bytes=UNKNOWN),)
    trace = draw("forward 0", evidence=without(RECORDED, Evidence.CONFIG))

    for data in (draw("forward 0", units=units), trace):
        assert not_judged(padding_alignment, measured(data)).needs == (Evidence.CONFIG,)


def part(fqn: str, local: int) -> ParamSpec:
    """A parameter with so many elements on each rank."""
    return ParamSpec(
        fqn=fqn,
        shape=(2 * local,),
        dtype="float32",
        trainable=True,
        shard_dim=0,
        local_numel=local,
        padded_local_numel=local,
    )


ODD = unit(
    "layers.0",
    unsharded_bytes=8 * 41,
    params=(part("layers.0.weight", 40), part("layers.0.bias", 1)),
)


def test_what_nccl_will_do_is_said_without_a_gpu() -> None:
    """41 float32 on each of two ranks: 164 bytes, because of the bias."""
    finding = only(padding_alignment, measured(draw("forward 0", units=(ODD,))))

    assert finding.severity == Severity.INFO
    assert finding.summary == (
        "on a GPU NCCL will gather 1 unit by slower copies: each rank's part of "
        "layers.0 has 164 bytes, no multiple of 16 (layers.0.bias)"
    )
    assert finding.evidence == {
        "bytes_per_rank": {"layers.0": 164},
        "parameters": ["layers.0.bias"],
    }


def test_a_modelled_device_is_none() -> None:
    """A rehearsal's copies take what the model says, whatever their alignment."""
    rehearsed = measured(draw("forward 0", CUDA, units=(ODD,)), source="rehearsal")

    assert only(padding_alignment, rehearsed).severity == Severity.INFO
    real = measured(draw("forward 0", CUDA, units=(ODD,)))
    assert found(padding_alignment, real) == []


def test_where_alignment_makes_no_difference_nothing_is_said() -> None:
    """One rank to shard over, aligned parts, and a twentieth of what is gathered."""
    alone = GroupSpec(name="shard", ranks=(0,), size=1)
    aligned = unit("layers.0", unsharded_bytes=8 * 40, params=(part("w", 40),))
    little = unit("layers.1", unsharded_bytes=8 * 41 * 20)
    runs = (
        draw("forward 0", units=(ODD,), groups=(alone,)),
        draw("forward 0", units=(aligned,)),
        draw("forward 01", units=(ODD, little)),
    )

    assert [found(padding_alignment, measured(run)) for run in runs] == [[], [], []]
