"""A report in Weights & Biases or MLflow, beside the run that one logs there already.

Neither is imported: whoever logs to one has it. Steps have an axis of their own, for
what is logged after training may not go back on the tracker's.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from fsdpdoctor.errors import UsageError
from fsdpdoctor.integrations.scalars import by_step, summary_of
from fsdpdoctor.renderers.html import render
from fsdpdoctor.report.step_rows import StepRow
from fsdpdoctor.report.value import Report

PREFIX = "fsdpdoctor"
REPORT_FILE = f"{PREFIX}/report.html"

LONGEST_TAG = 500
"""Characters of an MLflow tag, where its store has the least room."""


def log_report(tracker: Any, report: Report, rows: Sequence[StepRow]) -> None:
    """Log the verdict, the figures of each step and the report's page.

    Args:
        tracker: A run of `wandb`, or the module `wandb` or `mlflow`: their active run.
        report: What is logged.
        rows: The steps of the same run.

    Raises UsageError for any other tracker.
    """
    package = (
        tracker.__name__
        if isinstance(tracker, ModuleType)
        else type(tracker).__module__
    ).split(".")[0]
    if package == "wandb":
        _to_wandb(_active(tracker), report, rows)
    elif package == "mlflow" and isinstance(tracker, ModuleType):
        _to_mlflow(tracker, report, rows)
    else:
        raise UsageError(
            f"cannot log to {tracker!r}; expected a run of wandb, or the module wandb "
            "or mlflow"
        )


def _active(tracker: Any) -> Any:
    if not isinstance(tracker, ModuleType):
        return tracker
    if tracker.run is None:
        raise UsageError("wandb has no active run: call wandb.init() before")
    return tracker.run


def _to_wandb(run: Any, report: Report, rows: Sequence[StepRow]) -> None:
    axis = f"{PREFIX}/step"
    run.define_metric(f"{PREFIX}/*", step_metric=axis)
    for step, figures in by_step(rows).items():
        run.log({axis: step, **_named(figures)})
    html = importlib.import_module("wandb").Html(
        render(report), inject=False, data_is_not_path=True
    )
    run.log({f"{PREFIX}/report": html})
    run.summary.update(
        {f"{PREFIX}/verdict": report.verdict.text, **_named(summary_of(report))}
    )


def _to_mlflow(mlflow: Any, report: Report, rows: Sequence[StepRow]) -> None:
    for step, figures in by_step(rows).items():
        mlflow.log_metrics(_named(figures), step=step)
    mlflow.log_metrics(_named(summary_of(report)))
    mlflow.set_tag(f"{PREFIX}.verdict", report.verdict.text[:LONGEST_TAG])
    mlflow.log_text(render(report), REPORT_FILE)


def _named(figures: Mapping[str, float]) -> dict[str, float]:
    return {f"{PREFIX}/{name}": value for name, value in figures.items()}
