"""FD502, comm-dtype."""

from __future__ import annotations

from fsdpdoctor.detectors.comm_dtype import comm_dtype
from fsdpdoctor.finding import Severity
from fsdpdoctor.schema import Evidence, ModelSpec
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without

PICTURE = """
    all_gather  0.......
    forward     .0000000
"""
AUTOCAST = ModelSpec(wrapper="fsdp2", autocast_dtype="bfloat16")


def test_float32_gathers_under_autocast() -> None:
    """1 MiB per step, of which half would do."""
    finding = only(comm_dtype, measured(draw(PICTURE, model=AUTOCAST)))

    assert finding.severity == Severity.WARNING
    assert finding.units == ("layers.0",)
    assert finding.cost_bytes == 1 << 19
    assert "param_dtype=torch.bfloat16, reduce_dtype=torch.float32" in codes(finding)[0]
    assert finding.advice[0].memory_cost_bytes == -(4 << 20)


def test_plain_float32_is_information_on_a_device_only() -> None:
    """Numerics are the user's choice."""
    assert only(comm_dtype, measured(draw(PICTURE, CUDA))).severity == Severity.INFO
    assert found(comm_dtype, measured(draw(PICTURE))) == []


def test_a_policy_is_no_finding() -> None:
    """Gathered in bfloat16; a unit kept wide beside it is on purpose."""
    units = (
        unit("layers.0", gather_dtype="bfloat16", param_dtype="bfloat16"),
        unit("norm"),
    )

    assert found(comm_dtype, measured(draw(PICTURE, CUDA, units=units))) == []


def test_mixed_dtypes_are_gathered_as_bytes() -> None:
    """Information."""
    units = (unit("layers.0", gather_dtype="uint8"),)

    finding = only(comm_dtype, measured(draw(PICTURE, units=units)))

    assert finding.severity == Severity.INFO
    assert finding.evidence == {"gather_dtype": "uint8"}


def test_without_dtypes_it_cannot_tell() -> None:
    """Neither the tree nor a dtype in it."""
    units = (unit("layers.0", gather_dtype=None),)
    bare = draw(PICTURE, evidence=without(RECORDED, Evidence.CONFIG))

    for data in (draw(PICTURE, units=units), bare):
        assert not_judged(comm_dtype, measured(data)).needs == (Evidence.CONFIG,)
