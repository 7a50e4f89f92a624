"""FD506, not-sharded."""

from __future__ import annotations

import pytest

from fsdpdoctor.detectors.not_sharded import not_sharded
from fsdpdoctor.finding import Severity
from fsdpdoctor.schema import BlockSpec, Evidence, ModelSpec
from fsdpdoctor.testing import TRACED, draw, measured
from tests.detectors.answers import codes, found, not_judged, only

BLOCKS = (
    BlockSpec(container="heads", module_class="Head", count=2, units=0, numel=10),
    BlockSpec(container="layers", module_class="Block", count=4, units=0, numel=200),
)


@pytest.mark.parametrize(
    ("wrapper", "says"),
    [
        ("ddp", "DistributedDataParallel wraps the model"),
        ("fsdp1", "FullyShardedDataParallel (FSDP1) wraps the model"),
        ("none", "ranks train apart"),
    ],
)
def test_a_model_without_units(wrapper: str, says: str) -> None:
    """What wraps it instead, and code for its own blocks."""
    model = ModelSpec(wrapper=wrapper, blocks=BLOCKS)

    finding = only(not_sharded, measured(draw("optimizer xx", units=(), model=model)))

    assert finding.severity == Severity.CRITICAL
    assert says in finding.summary
    assert "for name in [" in codes(finding)[0]


def test_one_process_alone_has_nothing_to_shard() -> None:
    """Information."""
    m = measured(
        draw("optimizer xx", units=(), world_size=1, model=ModelSpec(wrapper="none"))
    )

    assert only(not_sharded, m).severity == Severity.INFO


def test_a_trace_of_ddp_is_no_alarm() -> None:
    """Whoever brings a trace may have meant DDP: information."""
    model = ModelSpec(wrapper="ddp")
    m = measured(draw("kernel 00", units=(), model=model, evidence=TRACED))

    assert only(not_sharded, m).severity == Severity.INFO


def test_a_sharded_model_is_no_finding() -> None:
    """One unit is enough."""
    assert found(not_sharded, measured(draw("forward 00"))) == []


def test_without_a_model_it_cannot_tell() -> None:
    """No units, and nothing that says why."""
    answer = not_judged(
        not_sharded, measured(draw("optimizer xx", units=(), model=None))
    )

    assert answer.needs == (Evidence.CONFIG,)
