"""What trackers are given; wandb and mlflow themselves, offline, where installed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import fsdpdoctor as fd
from fsdpdoctor.errors import UsageError
from fsdpdoctor.integrations.trackers import log_report
from fsdpdoctor.renderers.html import render
from fsdpdoctor.report.step_rows import step_rows
from tests.integrations.drawn import STEPS, measured_run, save

BLOCK, WHOLE, LAST = 32 * 1024, 1, 4

VERDICT = "Compute waits 50.0 % of every step"


class Calls(ModuleType):
    """A module whose functions keep what they are given."""

    run = None

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.made: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **options: self.made.append(
            (name, (*given, *options.values()))
        )


def test_mlflow_gets_steps_verdict_and_page() -> None:
    """Each step's figures at its own number, and the whole run's without one."""
    mlflow = Calls("mlflow")
    measures, report = measured_run()
    log_report(mlflow, report, step_rows(measures))
    steps = [given for name, given in mlflow.made if name == "log_metrics"]

    assert [given[1:] for given in steps] == [*((step,) for step in STEPS), ()]
    assert steps[0][0]["fsdpdoctor/step_ms"] == 16.0
    assert steps[-1][0]["fsdpdoctor/exposed_ms_per_step"] == 8.0
    assert mlflow.made[-2:] == [
        ("set_tag", ("fsdpdoctor.verdict", report.verdict.text)),
        ("log_text", (render(report), "fsdpdoctor/report.html")),
    ]


def test_what_is_no_tracker_is_said() -> None:
    """A name is none, nor is a tracker without a run."""
    measures, report = measured_run()
    rows = step_rows(measures)

    with pytest.raises(UsageError, match="cannot log to 'wandb'; expected a run of"):
        log_report("wandb", report, rows)
    with pytest.raises(UsageError, match=r"no active run: call wandb\.init\(\)"):
        log_report(Calls("wandb"), report, rows)


def offline_records(content: bytes) -> Iterator[bytes]:
    """What wandb's offline file holds: the log format of LevelDB, in blocks of 32 KiB,
    after a head of seven bytes.
    """
    at, parts = 7, b""
    while at + 7 <= len(content):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack("<HB", content[at + 4 : at + 7])
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (WHOLE, LAST):
            yield parts
            parts = b""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the tracker's own
def test_wandb_has_it_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call beside a loss at a later step: nothing of it is dropped."""
    wandb = pytest.importorskip("wandb", reason="logs to the package wandb, offline")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(project="p", dir=str(tmp_path))
    run.log({"loss": 1.0}, step=50)
    report = fd.log_to(run, save(tmp_path / "run"))
    run.finish()

    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    steps: list[tuple[float, float]] = []
    summary: dict[str, str] = {}
    for content in offline_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        logged = {"/".join(i.nested_key) or i.key: i for i in record.history.item}
        if "fsdpdoctor/step_ms" in logged:
            of = (logged[f"fsdpdoctor/{name}"] for name in ("step", "step_ms"))
            at, value = (float(item.value_json) for item in of)
            steps.append((at, value))
        for item in record.summary.update:
            summary["/".join(item.nested_key) or item.key] = item.value_json

    assert steps == [(step, 16.0) for step in STEPS]
    assert VERDICT in summary["fsdpdoctor/verdict"]
    (page,) = tmp_path.glob("wandb/offline-run-*/files/media/html/fsdpdoctor/*.html")
    assert page.read_text(encoding="utf-8") == render(report.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the tracker's own
def test_mlflow_has_it_in_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a server: metrics by step, the verdict, and the page."""
    mlflow = pytest.importorskip("mlflow", reason="logs to the package mlflow, offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'mlruns'}")
    with mlflow.start_run() as active:
        report = fd.log_to(mlflow, save(tmp_path / "run"))
    client = mlflow.MlflowClient()
    name = active.info.run_id
    history = client.get_metric_history(name, "fsdpdoctor/step_ms")

    assert sorted((one.step, one.value) for one in history) == [
        (step, 16.0) for step in STEPS
    ]
    tags = client.get_run(name).data.tags
    assert tags["fsdpdoctor.verdict"] == report.value.verdict.text
    page = client.download_artifacts(name, "fsdpdoctor/report.html", str(tmp_path))
    assert Path(page).read_text(encoding="utf-8") == render(report.value)
