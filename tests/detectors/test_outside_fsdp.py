"""FD508, outside-fsdp."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.outside_fsdp import outside_fsdp
from fsdpdoctor.finding import Severity
from fsdpdoctor.schema import Evidence, ModelSpec, Phase, ReplicaKind, ReplicaSpec
from fsdpdoctor.testing import RECORDED, Call, draw, measured, unit
from tests.detectors.answers import codes, found, not_judged, only, sized, without

PICTURE = "forward 0000"

HEAD = ModelSpec(
    wrapper="fsdp2",
    numel=1000,
    unmanaged_fqns=("lm_head.weight",),
    unmanaged_params=1,
    unmanaged_numel=100,
    unmanaged_bytes=400,
    unmanaged_trainable=1,
)


def two(model: ModelSpec, *samples: tuple[str, ...], before: int = -1) -> Measures:
    """Two ranks with a model, and what each sampled of the head."""
    ranks = []
    for rank in (0, 1):
        data = draw(PICTURE, rank=rank, model=model, units=(unit("layers.0"),))
        taken = samples[rank : rank + 1]
        replicas = tuple(
            ReplicaSpec(
                name="lm_head.weight",
                kind=ReplicaKind.OUTSIDE,
                trainable=True,
                shape=(10, 10),
                steps=(before, 3, 4)[: len(values)],
                values=values,
            )
            for values in taken
        )
        ranks.append(replace(data, header=replace(data.header, replicas=replicas)))
    return measured(*ranks)


def test_gradients_that_nobody_reduces() -> None:
    """Alike before the first step, and not after step 3: that is proof."""
    finding = only(outside_fsdp, two(HEAD, ("same", "a", "b"), ("same", "c", "d")))

    assert finding.severity == Severity.CRITICAL
    assert finding.units == ("lm_head.weight",)
    assert finding.cost_bytes == 400
    assert finding.summary == (
        "1 trainable parameter outside every unit (lm_head.weight; 400 B, 10.0 % of "
        "the model's elements): no collective reduces their gradients, and the ranks' "
        "copies differ since step 3"
    )
    assert codes(finding)[0].endswith("fully_shard(model)")
    assert "dist.all_reduce(param.grad)" in codes(finding)[1]
    assert finding.advice[0].memory_cost_bytes == -200


def test_left_out_on_purpose_is_no_better() -> None:
    """`ignored_params` says who shards, and not who reduces."""
    ignored = replace(HEAD, ignored_params=1)

    finding = only(outside_fsdp, two(ignored, ("same", "a"), ("same", "b")))

    assert finding.severity == Severity.CRITICAL
    assert "1 by ignored_params" in finding.summary
    assert "dist.all_reduce(param.grad)" in codes(finding)[0]


@pytest.mark.parametrize("model", [replace(HEAD, ignored_params=1)])
def test_a_script_that_reduces_them_itself(model: ModelSpec) -> None:
    """Ranks stay alike while the values change."""
    assert found(outside_fsdp, two(model, ("same", "a"), ("same", "a"))) == []


@pytest.mark.parametrize(
    ("unmanaged", "unit_fqn"),
    [("layers.0.out.down.weight", "layers.0"), ("layers.0.down.weight", "<root>")],
)
def test_what_came_after_sharding_is_not_sharded_again(
    unmanaged: str, unit_fqn: str
) -> None:
    """`fully_shard` raises on a root that has it, and passes over a unit's modules."""
    late = replace(HEAD, unmanaged_fqns=(unmanaged,), model_class="Net")
    around = replace(unit(unit_fqn), module_class="Net")
    data = draw(PICTURE, model=late, units=(around,))

    finding = only(outside_fsdp, measured(data))

    assert not any("fully_shard(model)" in code for code in codes(finding))
    assert "before they were there" in finding.advice[-1].text


def test_what_was_never_alike_is_another_fault() -> None:
    """FD507 says it: whether gradients are reduced cannot be seen."""
    ignored = replace(HEAD, ignored_params=1)

    assert found(outside_fsdp, two(ignored, ("a", "b"), ("c", "d"))) == []


def test_without_samples_it_is_not_known() -> None:
    """A warning: FSDP2 does not reduce them, perhaps the script does."""
    finding = only(outside_fsdp, two(HEAD))

    assert finding.severity == Severity.WARNING
    assert "was not sampled" in finding.summary


def test_frozen_parameters_outside_cost_memory_alone() -> None:
    """A tenth of the model, held whole by every rank."""
    frozen = replace(HEAD, unmanaged_trainable=0)

    finding = only(outside_fsdp, two(frozen))
    small = replace(frozen, unmanaged_numel=99)

    assert finding.severity == Severity.INFO
    assert finding.summary.endswith("every rank holds all of them")
    assert found(outside_fsdp, two(small)) == []


def test_without_the_model_it_cannot_tell() -> None:
    """Neither described, nor its tree."""
    bare = draw(PICTURE, model=HEAD, evidence=without(RECORDED, Evidence.CONFIG))

    for m in (measured(draw(PICTURE, model=None)), measured(bare)):
        assert not_judged(outside_fsdp, m).needs == (Evidence.CONFIG,)


@pytest.mark.parametrize(("numel", "severity"), [(100, None), (300, Severity.WARNING)])
def test_reduced_by_hand_as_far_as_is_known(
    numel: int, severity: Severity | None
) -> None:
    """One rank's record: 400 bytes are all-reduced after each backward, which are the
    gradients of 100 elements, and too few of 300.
    """
    model = replace(HEAD, unmanaged_numel=numel, unmanaged_bytes=4 * numel, numel=10000)
    call = Call(kind="all_reduce", site="train.py:9")
    picture = "forward 0000....\nother ....00.."
    rank = draw(picture, model=model, calls=(call,), units=(unit("layers.0"),))

    judged = found(outside_fsdp, measured(sized(rank, 400)))

    assert [f.severity for f in judged] == ([] if severity is None else [severity])


def exchanging(call: Call, bytes: int) -> Measures:
    """Two ranks whose heads began alike and differ, and that issue a collective."""
    ranks = []
    for data in two(HEAD, ("same", "a"), ("same", "b")).ranks:
        drawn = draw(
            "forward 0000....\nother ....00..",
            rank=data.rank,
            model=HEAD,
            calls=(call,),
            units=(unit("layers.0"),),
        )
        header = replace(drawn.header, replicas=data.header.replicas)
        ranks.append(sized(replace(drawn, header=header), bytes))
    return measured(*ranks)


@pytest.mark.parametrize(
    ("call", "bytes", "severities"),
    [
        # Averaged now and then: half of what the head has, at least, in some step.
        (Call(kind="all_reduce", site="t.py:9"), 200, [Severity.INFO]),
        (Call(kind="all_reduce", site="t.py:9"), 199, [Severity.CRITICAL]),
        # Other parts, perhaps: experts outside, tensor parallelism by hand.
        (
            Call(kind="all_to_all", site="t.py:9", phase=Phase.FORWARD),
            1 << 16,
            [Severity.WARNING],
        ),
    ],
)
def test_what_ranks_exchange_decides(
    call: Call, bytes: int, severities: list[Severity]
) -> None:
    """Copies that differ prove a fault where nothing makes them differ by right."""
    judged = found(outside_fsdp, exchanging(call, bytes))

    assert [finding.severity for finding in judged] == severities
