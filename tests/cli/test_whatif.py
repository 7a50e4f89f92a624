"""`fsdpdoctor whatif`, on runs whose every nanosecond was simulated."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.cli import main
from fsdpdoctor.renderers.reading.unit_names import UnitNames
from fsdpdoctor.renderers.whatif import show_forecast
from fsdpdoctor.run import in_memory, open_run, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.simulate.engine.simulate import simulate
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.forecast import forecast, replay_run
from tests.simulate.steps import prefetching, step, with_units

BASE = step(4, blocking=True)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run folder of four blocks on a host without streams."""
    data = record(BASE)
    header = RunHeader(run_id="s", source="simulated", world_size=8)
    save_run(in_memory(header, [data]), tmp_path / "run")
    return tmp_path / "run"


def whatif(*arguments: str | Path) -> Result:
    """The command, as a shell would run it."""
    return CliRunner().invoke(main, ["whatif", *map(str, arguments)])


def of_json(*arguments: str | Path) -> Any:
    """What it prints with --json."""
    result = whatif(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_units_of_several_models_say_which(run: Path) -> None:
    """In the table and above the code."""
    opened, text = open_run(run), io.StringIO()
    plan = Plan(reshard_after_forward={"layers.1": False})
    found = forecast(replay_run(opened, measure(opened)), [plan])
    named = UnitNames(model_of={"layers.1": "Actor", "layers.1 [tree=1]": "Critic"})
    show_forecast(found, Console(file=text, width=150), named)

    assert text.getvalue().count("reshard after forward: layers.1 of Actor False") == 2


def test_a_prediction_is_the_changed_step(run: Path) -> None:
    """Replay error nought; the step, exposure and peak are those simulated."""
    content = of_json(run, "--prefetch", "1", "--prefetch", "2")
    both = [
        simulate(
            with_units(
                prefetching(prefetching(BASE, k), k, backward=True),
                unshard_async_op=True,
            )
        )
        for k in (1, 2)
    ]

    assert content["replay_error"] == 0
    assert content["withheld"] is None
    assert content["baseline"]["step_ns"] == simulate(BASE).step_ns
    assert [p["plan"]["forward_prefetch"] for p in content["predictions"]] == [1, 2]
    for prediction, expected in zip(content["predictions"], both, strict=True):
        causes = prediction["exposed_ns"].pop("by_cause")
        assert sum(causes.values()) == sum(prediction["exposed_ns"].values())
        # The root prefetches too, which hides one more gather than the lists of steps.
        assert prediction["step_ns"] <= expected.step_ns
        assert prediction["gathered_peak_bytes"] == expected.gathered_peak_bytes
        assert prediction["gain_ns"] > 0
        assert "set_modules_to_forward_prefetch" in prediction["code"]


def test_search_saves_the_best_plan(run: Path, tmp_path: Path) -> None:
    """What it saves can be asked about again, and gives the same."""
    plan = tmp_path / "plan.json"
    content = of_json(run, "--search", "--save", plan)
    best = max(content["predictions"], key=lambda p: p["gain_ns"])
    again = of_json(run, "--plan", plan)

    assert [p["step_ns"] for p in again["predictions"]] == [best["step_ns"]]
    assert json.loads(plan.read_text())["plan"] == best["plan"]


def test_the_terminal_has_error_gain_and_code(run: Path) -> None:
    """The replay's error comes first; lines of code are never broken."""
    result = whatif(run, "--reshard", "false")
    lines = result.stdout.splitlines()

    assert lines[0].endswith("mean step (0.0 % of it), rank 0, 4 steps")
    assert [line.strip() for line in lines[lines.index("    for name in keep:") :]][
        :3
    ] == [
        "for name in keep:",
        "unit = model.get_submodule(name)",
        "unit.set_reshard_after_forward(False, recurse=False)",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--reshard", "often"], "is no policy"),
        (["--reshard", "3"], "does not divide"),
        (["--mesh", "2by4"], "is no mesh"),
        (["--reshard", "9" * 5000], "is no policy"),
        (["--mesh", f"2x{'9' * 5000}"], "is no mesh"),
        (["--wrap", "Block"], "no class that repeats"),
        (["--save", "plan.json"], "no plan to save"),
        (["--plan", "missing.json"], "cannot read"),
    ],
)
def test_bad_usage_is_one_line(run: Path, arguments: list[str], said: str) -> None:
    """Exit status 2, and what was expected."""
    result = whatif(run, *arguments)

    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output
