"""When the recording of a script begins: once, with torch, at the latest at its end."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from fsdpdoctor import recorder
from fsdpdoctor.recorder.recording_config import RecordingConfig
from fsdpdoctor.recorder.script_recording import ScriptRecording
from fsdpdoctor.recorder.storage.sampling import EveryStep


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What has begun, which cannot be recorded here."""
    found: list[str] = []

    def start(config: RecordingConfig) -> None:
        found.append(config.run_id)

    monkeypatch.setattr(recorder, "start", start)
    monkeypatch.setattr(recorder, "stop", lambda *ended: None)
    return found


def recording(folder: Path) -> ScriptRecording:
    """Of a run that is to be recorded."""
    config = RecordingConfig(folder=folder, run_id="a", sampling=EveryStep())
    return ScriptRecording(folder, config)


def test_begins_at_once_where_torch_is_there(
    begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not again."""
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    one = recording(tmp_path)
    with one.with_torch():
        assert begun == ["a"]
    one.begin()
    one.end("done", None)
    assert begun == ["a"]


@pytest.mark.parametrize("error", [None, ValueError(), SystemExit(3)])
def test_a_script_without_torch_is_recorded_at_its_end(
    error: BaseException | None,
    begun: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """How it ended is told, and its error passes."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    caught = None
    try:
        with recording(tmp_path).with_torch():
            assert begun == []
            if error is not None:
                raise error
    except BaseException as passed:
        caught = passed
    assert caught is error
    assert begun == ["a"]


def test_an_interrupt_waits_for_no_import(
    begun: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing had been trained."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(KeyboardInterrupt), recording(tmp_path).with_torch():
        raise KeyboardInterrupt
    assert begun == []


def test_nothing_begins_elsewhere(begun: list[str], tmp_path: Path) -> None:
    """In a forked child, on another thread, or where nothing is to be recorded."""
    one = recording(tmp_path)
    one._pid += 1
    one.begin()
    other = recording(tmp_path)
    thread = threading.Thread(target=other._torch_is_there)
    thread.start()
    thread.join()
    ScriptRecording(tmp_path, None).begin()
    assert begun == []
    other._torch_is_there()
    assert begun == ["a"]
