"""A moment as it is, and as a row tells of it."""

from __future__ import annotations

from enum import Enum
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.recorder.tape import facts
from fsdpdoctor.recorder.tape.worlds import Live, Taped
from fsdpdoctor.schema import Kind, Phase


class Sharded(Enum):
    """As FSDP2 has it."""

    SHARDED = 1
    UNSHARDED = 2


class Training(Enum):
    """As FSDP2 has it."""

    IDLE = 0
    FORWARD = 1
    PRE_BACKWARD = 2
    POST_BACKWARD = 3


def _worlds() -> tuple[Live, Taped, list[tuple[Any, ...]]]:
    beats: list[tuple[Any, ...]] = []
    recording = cast(
        Recording,
        SimpleNamespace(
            beat=lambda *given: beats.append(given),
            tick=lambda stream: 77,
            heartbeat=SimpleNamespace(beat_at=lambda *given: beats.append(given)),
        ),
    )
    return Live(recording), Taped(recording), beats


@pytest.mark.parametrize("state", Training)
@pytest.mark.parametrize("sharded", Sharded)
@pytest.mark.parametrize("gathers", [None, object()])
@pytest.mark.parametrize("modules", [["one"], ["one", "two"]])
@pytest.mark.parametrize("flags", [(True, False, True), (False, True, False)])
def test_a_group_is_the_same_in_both(
    state: Training,
    sharded: Sharded,
    gathers: object,
    modules: list[str],
    flags: tuple[bool, bool, bool],
) -> None:
    """What is asked of FSDP2, and what a row says of it."""
    live, taped, _ = _worlds()
    group = SimpleNamespace(
        _training_state=state,
        _sharded_state=sharded,
        _all_gather_result=gathers,
        modules=modules,
        reduce_grads=flags[0],
        all_reduce_grads=flags[1],
        reshard_after_backward=flags[2],
    )
    taped.facts = (
        state.value << facts.STATE_SHIFT
        | (facts.GATHERS if gathers else 0)
        | (facts.UNSHARDED if sharded is Sharded.UNSHARDED else 0)
        | (facts.ONE_MODULE if len(modules) == 1 else 0)
        | sum(bit for bit, flag in zip(facts.FLAGS, flags, strict=True) if flag)
    )
    unit: Any = object()
    assert live.state(group) == taped.state(unit) == state.name
    assert live.is_unsharded(group) == taped.is_unsharded(unit)
    assert live.gathers(group) == taped.gathers(unit)
    assert live.one_module(group) == taped.one_module(unit)
    assert live.flags(group) == taped.flags(unit) == flags


def test_of_a_row_the_time_and_the_thread_are_its_own() -> None:
    """And so is its beat."""
    live, taped, beats = _worlds()
    taped.time_ns, taped.thread_id, taped.facts = 5, 9, facts.BACKWARD
    assert (taped.tick(), taped.now_ns(), taped.thread()) == (5, 5, 9)
    assert taped.in_backward()
    taped.facts = 0
    assert not taped.in_backward()
    assert not live.in_backward()
    assert live.tick() == 77
    live.beat(Kind.FORWARD, Phase.FORWARD, 3)
    taped.beat(Kind.FORWARD, Phase.FORWARD, 3)
    assert beats == [
        (Kind.FORWARD, Phase.FORWARD, 3),
        (5, Kind.FORWARD, Phase.FORWARD, 3, -1, -1),
    ]


def test_a_partial_groups_post_forward_is_told_by_its_module() -> None:
    """It has none."""
    live, taped, _ = _worlds()
    assert live.without_module((None, 1))
    assert not live.without_module(())
    assert not live.without_module(("a module",))
    taped.facts = facts.PARTIAL
    assert taped.without_module(())
    taped.facts = 0
    assert not taped.without_module((None,))


def test_what_a_unit_holds_is_asked_of_its_group_while_there_is_one() -> None:
    """Shapes stay once it is freed."""
    _, taped, _ = _worlds()
    output = SimpleNamespace(numel=lambda: 6, itemsize=4)
    group = SimpleNamespace(fsdp_params=[SimpleNamespace(all_gather_outputs=[output])])
    there: Any = SimpleNamespace(group=lambda: group)
    gone: Any = SimpleNamespace(group=lambda: None)
    assert taped.unsharded_bytes(there) == 24
    assert taped.unsharded_bytes(gone) == 0
