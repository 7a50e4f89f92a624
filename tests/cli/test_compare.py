"""`fsdpdoctor compare` for CI: several runs, a baseline, an exit status."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import ModelSpec
from fsdpdoctor.testing import draw
from tests.cli.test_cli import fsdpdoctor, one_line, save
from tests.detectors.test_of_models import TWO

PICTURE = """
    forward     0.1.
    backward    ..10
"""


def run_of(folder: Path, more_ms: float = 0) -> Path:
    """A run whose steps of 4 ms are longer by so much."""
    data = draw(PICTURE)
    steps = tuple(
        replace(step, end_ns=step.end_ns + round(more_ms * MS)) for step in data.steps
    )
    return save(folder, replace(data, steps=steps), run_id=str(folder))


def test_a_longer_step_ends_with_status_one(tmp_path: Path) -> None:
    """Above the share that is allowed, and not below it."""
    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "b", 0.4)

    for share, status in (("5%", 1), ("0.05", 1), ("20%", 0), ("10%", 0)):
        ended = fsdpdoctor("compare", a, b, "--max-regression", share)
        assert ended.exit_code == status, share
    assert fsdpdoctor("compare", b, a, "--max-regression", "0%").exit_code == 0
    wrong = fsdpdoctor("compare", a, b, "--max-regression", "5 pct")
    assert wrong.exit_code == 2
    assert "'5 pct' is no share; expected for example 5%" in wrong.stderr


def test_steps_that_cannot_be_compared_are_no_success(tmp_path: Path) -> None:
    """One line, and exit status 2."""
    a, short = run_of(tmp_path / "a"), draw(PICTURE)
    b = save(tmp_path / "b", replace(short, steps=short.steps[:2]))

    ended = fsdpdoctor("compare", a, b, "--max-regression", "5%")

    assert ended.exit_code == 2
    assert "whether its step is longer cannot be told" in ended.stderr


def test_units_of_several_models_say_which(tmp_path: Path) -> None:
    """In what differs, and in what was changed; JSON has their own names."""
    spec = ModelSpec(wrapper="fsdp2", models=("Actor", "Critic"))
    kept = replace(TWO[1], reshard_after_forward=False)
    a, b = (
        save(
            tmp_path / name,
            draw(PICTURE.replace("1", "."), units=(TWO[0], one), model=spec),
            run_id=name,
        )
        for name, one in (("a", TWO[1]), ("b", kept))
    )
    said = fsdpdoctor("compare", a, b).stdout
    (found,) = json.loads(fsdpdoctor("compare", a, b, "--json").stdout)["differences"]

    assert "reshard_after_forward of layers.0 of Critic: True to False" in said
    assert "  layers.0 of Critic  reshard_after_forward" in said
    assert "[tree=" not in said
    assert found["unit"] == "layers.0 [tree=1]"


def test_each_other_run_is_compared_with_the_first(tmp_path: Path) -> None:
    """JSON has a list of them; one run alone is a mistake."""
    runs = [run_of(tmp_path / str(more), more) for more in (0, 1, 2)]

    found = json.loads(fsdpdoctor("compare", *runs, "--json").stdout)

    assert [each["regression_share"] for each in found["comparisons"]] == [0.25, 0.5]
    assert {each["a"] for each in found["comparisons"]} == {str(runs[0])}
    shown = fsdpdoctor("compare", *runs).stdout
    assert shown.count("median step 4.00 ms to") == 2
    assert one_line(fsdpdoctor("compare", runs[0])) == (
        "Error: one run is compared with nothing: name a second, or give --baseline"
    )


@pytest.mark.parametrize(("more", "status"), [(0.9, 0), (1.5, 1)])
def test_a_baseline_of_repeated_runs_has_a_spread(
    more: float, status: int, tmp_path: Path
) -> None:
    """Its newest is the first run; what they differ by is no regression."""
    good = tmp_path / "good"
    for index, longer in enumerate((0, 1, 0)):
        folder = run_of(good / f"run{index}", longer)
        os.utime(folder, (index, index))
    b = run_of(tmp_path / "b", more)

    ended = fsdpdoctor("compare", "--baseline", good, b, "--max-regression", "5%")

    assert ended.exit_code == status
    assert f"A: {good / 'run2'}" in ended.stdout
