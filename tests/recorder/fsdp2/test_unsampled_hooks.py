"""Between recorded steps: collectives are numbered, the last event is left."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from fsdpdoctor.recorder.storage.sampling import EveryStep
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import Kind, Phase
from tests.networks import uniform
from tests.recorder.rehearsed import sharded, train
from tests.rig.fake import one_thread, recording_to

COLLECTIVES = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)


def recorded(folder: Path, sampling: EveryStep) -> RankData:
    """Three steps of HSDP as rank 0 of 4."""
    job = Rehearsal(wire=uniform(1e12, 0), world_size=4, replicas=2)
    with one_thread(), rehearsing(job), recording_to(folder, sampling):
        dist.init_process_group("gloo")
        train(sharded(), steps=3)
    return open_run(folder).sources[0].load()


def numbered(data: RankData, step: int) -> list[tuple[int, str, int]]:
    """A step's collectives: kind, group's role, number in the group."""
    (spans,) = [s.spans for s in data.steps if s.step == step]
    roles = [group.role or "" for group in data.header.groups]
    return [
        (int(kind), roles[int(group)], int(seq))
        for kind, group, seq in zip(spans.kind, spans.group, spans.seq, strict=True)
        if kind in COLLECTIVES
    ]


def test_collectives_are_numbered_in_every_step(tmp_path: Path) -> None:
    """All three kinds: a number means the same whichever steps a rank records."""
    every = recorded(tmp_path / "every", EveryStep())
    last = recorded(tmp_path / "last", EveryStep(first=2))

    found = numbered(last, 2)
    assert found == numbered(every, 2)
    assert {kind for kind, _, _ in found} == set(COLLECTIVES)
    assert min(seq for _, _, seq in found) > 0


def test_the_last_events_are_the_same_as_in_a_recorded_step(tmp_path: Path) -> None:
    """A unit's compute comes after its gather, not before."""
    beats = recorded(tmp_path, EveryStep(first=9)).beats

    wanted = (Kind.ALL_GATHER, Kind.FORWARD)
    forward = [
        Kind(beat.kind)
        for beat in beats
        if beat.step == 2 and beat.phase == Phase.FORWARD and beat.kind in wanted
    ]
    assert forward == [*wanted] * 3
