"""The clock is that of the device the model is on, not of one that is there."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import fsdpdoctor
from fsdpdoctor.errors import UsageError
from fsdpdoctor.recorder.host.model_spec import plain_device
from fsdpdoctor.recorder.host.stall_watch import StallWatch
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.session import Session
from fsdpdoctor.recorder.storage.sampling import EveryStep
from fsdpdoctor.run import open_run
from fsdpdoctor.run_writer import Heartbeat
from fsdpdoctor.schema import UNKNOWN, Evidence, Kind, StepRecord
from tests.recorder.rehearsed import job, recorded, sharded, train


def test_a_model_on_the_cpu_is_timed_by_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where there is a CUDA device, which it does not use."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: True)
        with recorded(tmp_path):
            train(sharded())
    run = open_run(tmp_path)
    header = run.sources[0].load().header

    assert (header.ended, header.warnings) == ("done", ())
    assert (header.device, header.clock) == ("cpu", "host")
    assert (header.device_name, header.device_bytes) == (None, UNKNOWN)
    assert Evidence.ALLOCATOR not in header.evidence
    assert (run.header.device, run.header.nccl) == ("cpu", None)


@pytest.mark.parametrize(
    ("devices", "says"),
    [
        (("cpu", "cuda"), "units on cuda beside units on cpu"),
        (("xpu",), "the model is on xpu, whose streams the recorder cannot time"),
    ],
)
def test_refuses_units_that_it_cannot_time(
    devices: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    """A number of the wrong clock would be a wrong number."""
    session = Session(
        RecordingConfig(folder=tmp_path, run_id="test", sampling=EveryStep())
    )
    session.attach()
    *before, refused = devices
    for device in before:
        session.device_seen(device)

    with pytest.raises(UsageError, match=says):
        session.device_seen(refused)
    session.detach()


def kinds(record: StepRecord) -> list[int]:
    """Of its spans; a collection may come in any step."""
    return [kind for kind in record.spans.kind.tolist() if kind != Kind.GC]


def test_a_record_has_a_limit(tmp_path: Path) -> None:
    """No step is lost, and the newest have all that a record without one has."""
    with job(), fsdpdoctor.record(tmp_path / "whole", every=1):
        train(sharded(), steps=30)
    size = (tmp_path / "whole" / "rank00000.arrows").stat().st_size
    with job(), fsdpdoctor.record(tmp_path / "run", every=1, max_size=str(size)):
        train(sharded(), steps=30)
    data = open_run(tmp_path / "run").sources[0].load()

    assert data.header.ended == "done"
    assert sum(path.stat().st_size for path in (tmp_path / "run").iterdir()) <= size
    detailed = [record.step for record in data.steps]
    assert detailed == list(range(detailed[0], 30))
    assert data.steps[0].unrecorded.step.tolist() == list(range(detailed[0]))
    assert data.header.warnings[0].endswith(
        f"of the oldest {detailed[0]} recorded steps only the times are kept"
    )
    whole = open_run(tmp_path / "whole").sources[0].load()
    for record in data.steps:
        there = whole.steps[record.step]
        assert kinds(record) == kinds(there)


def test_a_model_that_the_script_lets_go_of_is_gone(tmp_path: Path) -> None:
    """A recording keeps none of it, and takes no later one for it."""

    def trained() -> list[weakref.ref[Any]]:
        model = sharded()
        train(model, steps=3)
        return [weakref.ref(one) for one in (model, *model.parameters())]

    with recorded(tmp_path):
        for _ in range(3):
            refs = trained()
            gc.collect()
            assert [ref() for ref in refs] == [None] * len(refs)
    header = open_run(tmp_path).sources[0].load().header

    assert header.ended == "done"
    assert header.model is not None
    assert len(header.model.models) == 3
    assert len(header.model.optimizers) == 3
    assert [unit.model for unit in header.units] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_a_plain_model_s_parameters_say_where_it_is() -> None:
    """FSDP1 says it itself; units say it for FSDP2; a model may have none."""
    offloaded: Any = nn.Linear(2, 2)
    offloaded.compute_device = torch.device("cuda", 0)

    assert plain_device(nn.Linear(2, 2)) == "cpu"
    assert plain_device(nn.Linear(2, 2, device="meta")) == "meta"
    assert plain_device(offloaded) == "cuda"
    assert plain_device(nn.ReLU()) is None
    assert plain_device(SimpleNamespace()) is None
    with job():
        assert plain_device(sharded()) is None


def _fails(*args: object, **kwargs: object) -> None:
    raise OSError("no space")


@pytest.mark.parametrize(
    ("owner", "name", "says"),
    [
        (Heartbeat, "flush", "the heartbeat ends early: no space"),
        (StallWatch, "stop", "stalls are not told: no space"),
    ],
)
def test_what_fails_beside_the_record_is_said_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, says: str
) -> None:
    """The record itself is whole, and training has noticed nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, _fails)
        with recorded(tmp_path):
            train(sharded())
    data = open_run(tmp_path).sources[0].load()

    assert (data.header.ended, data.header.warnings) == ("done", (says,))
    assert [step.step for step in data.steps if step.complete] == [0, 1]


def test_what_ends_after_the_recording_puts_no_hook_back(tmp_path: Path) -> None:
    """A step that is under way as it stops: collectives are seen by nobody."""
    with job():
        session = Session(
            RecordingConfig(folder=tmp_path, run_id="test", sampling=EveryStep())
        )
        session.attach()
        seen = len(session._calls._libraries)
        session._stop("detached: KeyError")
        session.turn(True)
        left = len(session._calls._libraries)
    assert seen > 0
    assert left == 0
    assert not session._rec.on
