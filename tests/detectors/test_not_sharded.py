"""FD506, not-sharded."""

from __future__ import annotations

import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.not_sharded import not_sharded
from fsdpdoctor.finding import Confidence, Severity
from fsdpdoctor.schema import (
    BlockSpec,
    Evidence,
    ModelSpec,
    Phase,
    ReplicaKind,
    ReplicaSpec,
)
from fsdpdoctor.testing import RECORDED, TRACED, Call, draw, measured
from tests.detectors.answers import codes, found, not_judged, only, sized
from tests.rig.changed import replace

SEEN = (*RECORDED, Evidence.OTHER_COLLECTIVES)

BLOCKS = (
    BlockSpec(container="heads", module_class="Head", count=2, units=0, numel=10),
    BlockSpec(container="layers", module_class="Block", count=4, units=0, numel=200),
)


@pytest.mark.parametrize(
    ("wrapper", "says"),
    [
        ("ddp", "DistributedDataParallel wraps the model"),
        ("fsdp1", "FullyShardedDataParallel (FSDP1) wraps the model"),
    ],
)
def test_a_model_without_units(wrapper: str, says: str) -> None:
    """What wraps it instead, and code for its own blocks."""
    model = ModelSpec(wrapper=wrapper, blocks=BLOCKS)

    finding = only(not_sharded, measured(draw("optimizer xx", units=(), model=model)))

    assert finding.severity == Severity.CRITICAL
    assert says in finding.summary
    assert "for name in [" in codes(finding)[0]


@pytest.mark.parametrize(
    ("wrapper", "says", "advises"),
    [
        ("ddp", "told to use FSDP and fell back", "On CPU"),
        (
            "fsdp1",
            "FullyShardedDataParallel (FSDP1)",
            "fsdp_version: 2",
        ),
    ],
)
def test_what_accelerate_made_of_it(wrapper: str, says: str, advises: str) -> None:
    """Its file asks for FSDP: the cause is named, and no code in its place."""
    model = ModelSpec(wrapper=wrapper, blocks=BLOCKS)
    data = draw("optimizer xx", units=(), model=model)
    asked = {"ACCELERATE_USE_FSDP": "true"}
    data = replace(data, header=replace(data.header, environment=asked))

    finding = only(not_sharded, measured(data))

    (advice,) = finding.advice
    assert says in finding.summary
    assert advises in advice.text
    assert advice.code is None


def bare(
    *values: str, calls: tuple[Call, ...] = (), bytes: int = 1 << 20, before: int = -1
) -> Measures:
    """Ranks whose model nothing wraps, what each sampled of a weight after a sample
    from before, and what each calls.
    """
    model = ModelSpec(wrapper="none", blocks=BLOCKS, trainable_numel=1000)
    picture = "optimizer ......xx"
    if calls:
        picture += "\nother ....00.."
    ranks = []
    for rank, value in enumerate(values or ("",)):
        data = draw(
            picture, rank=rank, units=(), model=model, calls=calls, evidence=SEEN
        )
        sample = ReplicaSpec(
            name="layers.0.weight",
            kind=ReplicaKind.OUTSIDE,
            trainable=True,
            shape=(10, 10),
            steps=(before, 3),
            values=("start", value),
        )
        replicas = (sample,) if value else ()
        header = replace(data.header, replicas=replicas)
        ranks.append(sized(replace(data, header=header), bytes))
    return measured(*ranks, world_size=2)


def test_ranks_that_train_apart() -> None:
    """They began alike, differ since step 3, and exchange nothing: proof."""
    finding = only(not_sharded, bare("a", "b"))

    assert (finding.severity, finding.confidence) == (
        Severity.CRITICAL,
        Confidence.HIGH,
    )
    assert finding.summary == (
        "no FSDP2 unit: nothing of PyTorch's shards or replicates the model, and ranks "
        "train apart: layers.0.weight began alike on ranks 0 and 1 and differs since "
        "step 3"
    )
    assert finding.evidence["differ_since_step"] == 3
    assert "for name in [" in codes(finding)[0]


def test_a_few_numbers_of_a_metric_do_not_join_ranks() -> None:
    """An all-reduce of the loss, in a forward or after it."""
    for phase in (Phase.FORWARD, Phase.OTHER):
        call = Call(kind="all_reduce", site="train.py:9", phase=phase)

        finding = only(not_sharded, bare("a", "b", calls=(call,), bytes=4))

        assert finding.severity == Severity.CRITICAL


def test_a_script_that_reduces_gradients_itself() -> None:
    """1000 elements of float32, in half the width or more; ranks stay alike."""
    call = Call(kind="all_reduce", site="train.py:9", phase=Phase.BACKWARD)

    finding = only(not_sharded, bare("a", "a", calls=(call,), bytes=4000))

    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.HIGH)
    assert finding.summary == (
        "no FSDP2 unit: nothing of PyTorch's shards or replicates the model; the "
        "script's own all_reduce at train.py:9 moves 3.91 KiB in a step, as much as "
        "the gradients"
    )


def test_one_ranks_record_shows_that_it_reduces() -> None:
    """Nobody to compare with: less sure, and information all the same."""
    call = Call(kind="all_reduce", site="train.py:9")

    finding = only(not_sharded, bare(calls=(call,), bytes=2000))

    assert (finding.severity, finding.confidence) == (Severity.INFO, Confidence.MEDIUM)


def test_averaged_now_and_then_ranks_differ_by_right() -> None:
    """Local steps between averages of all parameters."""
    call = Call(kind="all_reduce", site="train.py:9")

    finding = only(not_sharded, bare("a", "b", calls=(call,), bytes=4000))

    assert finding.severity == Severity.INFO


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("all_to_all", Phase.FORWARD),
        ("_c10d_functional.all_reduce", Phase.FORWARD),
        ("send", Phase.OTHER),
    ],
)
def test_a_model_that_the_script_divides(kind: str, phase: Phase) -> None:
    """Activations are exchanged: ranks hold other parts of it, and may differ."""
    call = Call(kind=kind, site="train.py:9", phase=phase)

    finding = only(not_sharded, bare("a", "b", calls=(call,), bytes=4000))

    assert finding.severity == Severity.INFO
    assert finding.summary.endswith("so the script divides the model by hand")


def test_alike_without_a_known_reason() -> None:
    """All see the same data, or something reduces that was not seen."""
    finding = only(not_sharded, bare("a", "a"))

    assert finding.severity == Severity.INFO
    assert finding.summary.endswith("yet the ranks' copies stay alike as they train")


PROOF = "a record of two ranks from their first step on would prove it"
NO_START = "the ranks' copies were not sampled alike before the first step"
LESS = (
    "the script's own collectives move less than the gradients (all_reduce at "
    "train.py:9: 400 B in a step); "
)


@pytest.mark.parametrize(
    ("m", "says"),
    [
        (
            bare(),
            "no collective of the script's own was seen in 6 steps; " + PROOF,
        ),
        (
            bare("a", "b", before=2),
            "no collective of the script's own was seen in 6 steps; " + NO_START,
        ),
        (
            bare(calls=(Call(kind="all_reduce", site="train.py:9"),), bytes=400),
            LESS + PROOF,
        ),
    ],
)
def test_what_is_not_proved_is_a_warning(m: Measures, says: str) -> None:
    """It says what was seen, and what would prove that ranks train apart."""
    finding = only(not_sharded, m)

    assert (finding.severity, finding.confidence) == (
        Severity.WARNING,
        Confidence.MEDIUM,
    )
    assert finding.summary.endswith(f"perhaps ranks train apart: {says}")


def test_a_record_without_the_scripts_collectives_says_so() -> None:
    """What it exchanges is not known."""
    model = ModelSpec(wrapper="none", blocks=BLOCKS)

    finding = only(not_sharded, measured(draw("optimizer xx", units=(), model=model)))

    assert finding.severity == Severity.WARNING
    assert "what the script exchanges itself was not recorded" in finding.summary


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


def test_units_that_never_ran_are_not_known() -> None:
    """A script that ended in its first call, past the hooks: it may be sharded."""
    model = ModelSpec(wrapper="none")
    data = replace(draw("optimizer xx", units=(), model=model), steps=())

    assert not_judged(not_sharded, measured(data)).needs == (Evidence.STEPS,)
