"""Whole jobs on a modelled wire, which tune themselves in virtual time."""

from __future__ import annotations

from pathlib import Path

import pytest

import fsdpdoctor
from fsdpdoctor.recorder.autotune import conductor
from fsdpdoctor.rehearsal.modelled_group import World
from fsdpdoctor.run import open_run
from tests.networks import modelled_world, uniform
from tests.recorder.autotune.hurried import in_a_hurry, ranking
from tests.recorder.autotune.kinds import KINDS, TRIED, trained
from tests.recorder.autotune.modelled import Looking, one_thread_tuning
from tests.rig.fake import one_thread
from tests.rig.virtual import virtual_time

pytestmark = [
    # A model of the tests returns a view, which FSDP2 warns of.
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module"),
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # dynamo asks for it
]

RANKS = 64
BITS_STEPS = 110

FAST = ("evaluation",)


def many_ranks(kind: str) -> World:
    """Eight to a node."""
    replicas = 2 if kind == "hsdp" else 1
    wire = uniform(1e9)
    return World(wire=wire, size=RANKS, shard_size=RANKS // replicas, node_size=8)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(name, marks=[] if name in FAST else pytest.mark.slow)
        for name in KINDS
    ],
)
def test_bits_are_the_same_among_64_ranks(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses, gradients and parameters of every step, while settings change."""
    for patch in in_a_hurry(TRIED, "gathered"):
        monkeypatch.setattr(*patch)
    monkeypatch.setattr(conductor, "LEAD_S", 0.0)  # its steps take no time at all
    with one_thread(), virtual_time(), modelled_world(many_ranks(kind)):
        plain = trained(KINDS[kind], BITS_STEPS)
    with (
        one_thread_tuning(lambda folder: ranking(TRIED)),
        one_thread(),
        virtual_time(),
        modelled_world(many_ranks(kind)),
        fsdpdoctor.record(tmp_path / "run", autotune=True),
    ):
        tuned = trained(KINDS[kind], BITS_STEPS)

    assert tuned == plain
    assert not Looking.now.failed
    said = open_run(tmp_path / "run").sources[0].load().header.settings
    assert {one.words for one in said if one.trial} == set(TRIED)
    assert [one.words for one in said if not one.trial] == ["gathered"]
