"""The fair-benchmark sheet: figures with their spread and their definition."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.report.comparison.sheet import (
    Figure,
    Given,
    Sheet,
    encode_sheets,
    sheet_of,
)
from fsdpdoctor.run import RankData, in_memory, save_run
from fsdpdoctor.schema import MemoryStep, RunHeader, StartSpec
from fsdpdoctor.testing import draw, measured
from tests.rig.changed import replace
from tests.test_docs_formats import JSON, declared, documented

PICTURE = """
    all_gather   0.1.....
    wait         0.1.....
    unsharded    .0000000
    forward      .0.1....
    checkpoint   ......00
"""
STEP_NS = 8_000_000
GIVEN = Given(tokens_per_step=4000, peak_flops=1e12)


def counted(**changes: Any) -> RankData:
    """Of 2.5e9 FLOPs, half a billion were recomputed."""
    rank = draw(PICTURE, **changes)
    memory = MemoryStep(
        step=1, flops=2_500_000_000, recomputed_flops=500_000_000, peak_bytes=77
    )
    return replace(rank, header=replace(rank.header, memory=memory))


def figures(rank: RankData, given: Given = GIVEN) -> dict[str, Figure]:
    """By name."""
    return {one.name: one for one in sheet_of("run", measured(rank), given).figures}


def values(found: dict[str, Figure]) -> dict[str, float | None]:
    """Medians, without times of the start."""
    return {n: f.value for n, f in found.items() if not n.startswith("time_to")}


def test_each_figure_is_what_its_definition_says() -> None:
    """8 ms a step with 2 ms of gathers and a save of 2 ms; 4,000 tokens in 8 ms; two of
    8 billion FLOPs that the device could do meanwhile.
    """
    assert values(figures(counted())) == {
        "step_time": STEP_NS,
        "tokens_per_second_per_device": 500_000,
        "mfu": 0.25,
        "peak_memory": 77,
        "gather_time": 2_000_000,
        "checkpoint_save": 2_000_000,
        "checkpoint_restore": None,
    }


def test_what_is_not_known_says_why() -> None:
    """Nothing is given, and nothing was counted."""
    found = figures(draw(PICTURE), Given())

    assert {n: f.why_not for n, f in found.items() if f.value is None} == {
        "tokens_per_second_per_device": "the inputs are no tokens: give --tokens",
        "mfu": "give --flops",
        "peak_memory": "neither an allocator was asked nor storages counted",
        "checkpoint_restore": "no checkpoint was loaded in a recorded step",
        "time_to_first_step": "the process was not seen from its beginning",
        "time_to_first_stable_step": "no 3 steps in a row are alike, or the process "
        "was not seen from its beginning",
    }


def test_given_flops_go_before_counted_ones() -> None:
    """Half of what the device could do."""
    given = replace(GIVEN, flops_per_step=4e9)

    assert figures(counted(), given)["mfu"].value == 0.5


def test_the_first_stable_step_is_the_first_of_three_alike() -> None:
    """The process is as old as the clock; steps are drawn from 24 ms on."""
    start = StartSpec(
        process_unix_ns=1_000_000,
        total_ns=31_000_000,
        import_ns=1,
        init_ns=2,
        mesh_ns=3,
        wrap_ns=4,
        first_step_ns=5,
    )
    rank = counted()
    rank = replace(rank, header=replace(rank.header, start=start))

    found = {name: one.value for name, one in figures(rank).items()}

    assert found["time_to_first_step"] == 31_000_000
    assert found["time_to_first_stable_step"] == 4 * STEP_NS - 1_000_000


def test_json_is_documented() -> None:
    """Field by field."""
    assert documented(JSON["Benchmark sheet"].rows) == dict(declared(Sheet))


@pytest.mark.parametrize(("runs", "key"), [(1, "figures"), (2, "sheets")])
def test_the_command_prints_each_run(runs: int, key: str, tmp_path: Path) -> None:
    """As JSON and as text."""
    header = RunHeader(run_id="x", source="recorded", world_size=1)
    paths = [str(tmp_path / str(at)) for at in range(runs)]
    for path in paths:
        save_run(in_memory(header, [counted()]), Path(path))
    asked = ("compare", "--sheet", "--device", "h100", *paths)

    printed = CliRunner().invoke(main, [*asked, "--json"])
    shown = CliRunner().invoke(main, [*asked])

    assert printed.exit_code == shown.exit_code == 0, printed.output + shown.output
    assert key in json.loads(printed.stdout)
    assert shown.stdout.count("8.00 ms [8.00 ms to 8.00 ms]") == runs
    assert "peak: 67 TFLOP/s" in shown.stdout


def test_one_sheet_is_itself() -> None:
    """Not a list of one."""
    sheet = sheet_of("run", measured(counted()), GIVEN)

    assert json.loads(encode_sheets([sheet]))["run"] == "run"
