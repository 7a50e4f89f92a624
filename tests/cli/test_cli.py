"""The command line: what it prints, its exit status, and one line for bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.cli import COMMANDS, main
from fsdpdoctor.detectors import ALL
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData, in_memory, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.testing import draw, unit
from tests.importers.real_traces import real
from tests.rig.changed import replace

PICTURE = """
    micro_batch         0000000000000000
    all_gather          .0000..1111.....
    wait                .0000..1111.....
    forward             .....00....1....
    backward            ............000.
    optimizer           ...............x
"""
"""Two units whose all-gathers nothing hides: FD101 at warning or worse."""

HIDDEN = """
    micro_batch         0000000000000000
    all_gather          0...............
    forward             00000000........
    backward            ........0000000.
    optimizer           ...............x
"""


def fsdpdoctor(*args: str | Path, **options: Any) -> Result:
    """Run the command in this process."""
    runner = CliRunner()
    return runner.invoke(main, [str(arg) for arg in args], **options)


def save(folder: Path, *ranks: RankData, **header: Any) -> Path:
    """A run folder of drawn ranks."""
    given: dict[str, Any] = {"run_id": "drawn", "source": "recorded", "world_size": 2}
    given |= header
    save_run(in_memory(RunHeader(**given), ranks), folder)
    return folder


@pytest.fixture
def exposed(tmp_path: Path) -> Path:
    """A run with exposed all-gathers."""
    return save(tmp_path / "exposed", draw(PICTURE), draw(PICTURE, rank=1))


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A run that waits for nothing."""
    return save(tmp_path / "hidden", draw(HIDDEN), draw(HIDDEN, rank=1))


@pytest.mark.parametrize("command", ["analyze", "report"])
def test_prints_the_verdict_and_exposed_time_first(command: str, exposed: Path) -> None:
    """8 of 16 ms; all on the wire, as both ranks arrive together."""
    result = fsdpdoctor(command, exposed)

    assert result.exit_code == 0
    assert result.stdout.splitlines()[1] == (
        "exposed 8.00 ms of 16.0 ms per step on average (50.0 % of the step): "
        "all-gather 8.00 (wire 8.00)"
    )
    assert result.stderr == ""


def test_json_is_all_that_stdout_gets(exposed: Path) -> None:
    """`--json` and `--format json` are one thing, and parse."""
    result = fsdpdoctor("analyze", exposed, "--json")

    assert json.loads(result.stdout)["exposed_ns_per_step"]["all_gather"] == 8 * MS
    assert fsdpdoctor("analyze", exposed, "--format", "json").stdout == result.stdout
    assert fsdpdoctor("report", exposed, "--json").stdout == result.stdout


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.html", "<!doctype html>"),
        ("r.md", "**Compute waits"),
        ("r.json", '{\n "schema_version": 1'),
        ("r.txt", "Compute waits"),
    ],
)
def test_the_files_name_says_the_format(
    name: str, start: str, exposed: Path, tmp_path: Path
) -> None:
    """Where `--format` does not; stdout stays empty."""
    result = fsdpdoctor("analyze", exposed, "--out", tmp_path / name)

    assert (tmp_path / name).read_text().startswith(start)
    assert result.stdout == ""
    assert result.stderr == f"wrote {tmp_path / name}\n"


@pytest.mark.parametrize(
    ("severity", "status"), [("critical", 0), ("warning", 1), ("info", 1), (None, 0)]
)
def test_findings_fail_only_where_asked(
    severity: str | None, status: int, exposed: Path
) -> None:
    """What a CPU cannot overlap is a warning, no worse."""
    asked = ("--fail-on", severity) if severity else ()

    assert fsdpdoctor("analyze", exposed, *asked).exit_code == status


def test_a_run_that_waits_for_nothing_does_not_fail(hidden: Path) -> None:
    """A first all-gather, and all else hidden: nothing at warning or above."""
    assert fsdpdoctor("analyze", hidden, "--fail-on", "warning").exit_code == 0


def test_processes_give_the_same_report(exposed: Path) -> None:
    """To the last digit."""
    one = fsdpdoctor("analyze", exposed, "--json", "--jobs", "1")
    two = fsdpdoctor("analyze", exposed, "--json", "--jobs", "2")

    assert one.stdout == two.stdout != ""


def test_latest_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the folder that `run` keeps."""
    monkeypatch.chdir(tmp_path)
    run = save(Path("fsdpdoctor-runs/train-1"), draw(PICTURE), draw(PICTURE, rank=1))
    Path("fsdpdoctor-runs/latest").symlink_to("train-1")

    by_name = fsdpdoctor("analyze", "latest", "--json")

    assert by_name.exit_code == 0
    assert by_name.stdout == fsdpdoctor("analyze", run, "--json").stdout
    assert fsdpdoctor("analyze", run / "run.json", "--json").stdout == by_name.stdout


def test_the_folders_of_all_nodes_are_one_run(tmp_path: Path) -> None:
    """Given each, or the folder above them."""
    save(tmp_path / "job" / "node0", draw(PICTURE))
    save(tmp_path / "job" / "node1", draw(PICTURE, rank=1))

    each = fsdpdoctor(
        "analyze", tmp_path / "job" / "node0", tmp_path / "job" / "node1", "--json"
    )
    above = fsdpdoctor("analyze", tmp_path / "job", "--json")

    assert [row["rank"] for row in json.loads(each.stdout)["ranks"]] == [0, 1]
    assert above.stdout == each.stdout


def one_line(result: Result) -> str:
    """The one line that bad input gets on stderr, its exit status checked."""
    assert (result.exit_code, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    return line


def test_bad_input_gets_one_line(tmp_path: Path, exposed: Path) -> None:
    """What was seen, in a sentence; never a traceback."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("hello")
    save(tmp_path / "other", draw(PICTURE), run_id="other")
    newer = save(tmp_path / "newer", draw(PICTURE))
    header = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps(header | {"schema_version": 9}))

    for path, said in (
        (tmp_path / "none", "does not exist"),
        (tmp_path / "empty", "no trace found"),
        (tmp_path / "text.txt", "text.txt"),
        (newer, "format 9, this fsdpdoctor reads up to 2: upgrade"),
    ):
        assert said in one_line(fsdpdoctor("analyze", path))
    assert "not of one run" in one_line(
        fsdpdoctor("analyze", exposed, tmp_path / "other")
    )
    assert "is not a recorded run" in one_line(
        fsdpdoctor("analyze", exposed, tmp_path / "empty")
    )


TOO_LONG = "n" * 300


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        (["analyze", TOO_LONG], TOO_LONG),
        (["hang", TOO_LONG], TOO_LONG),
        (["compare", TOO_LONG, "other"], f"{TOO_LONG}/run.json"),
        (["import", "nothing.json", "--out", TOO_LONG], f"{TOO_LONG}/run.json"),
    ],
)
def test_a_name_that_no_system_takes_gets_one_line(
    command: list[str], asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether such a path is there, the system does not say: it raises."""
    monkeypatch.setattr(main, "ran_script", False)  # another test's in this process
    result = fsdpdoctor(*command)

    assert result.exit_code == 2
    assert result.output == f"Error: cannot use {asked}: File name too long\n"


def test_a_folder_of_runs_says_which_one_to_take(tmp_path: Path) -> None:
    """The newest is offered."""
    save(tmp_path / "a", draw(PICTURE), run_id="a")
    newest = save(tmp_path / "b", draw(PICTURE), run_id="b")
    os.utime(tmp_path / "a" / "run.json", (0, 0))

    assert one_line(fsdpdoctor("analyze", tmp_path)) == (
        f"Error: {tmp_path} holds 2 runs; give one of them, for example {newest}"
    )


def test_a_damaged_rank_does_not_cost_the_others(exposed: Path) -> None:
    """Its header is cut: the report is of rank 0, and names rank 1."""
    header = exposed / "rank00001.json"
    header.write_text(header.read_text()[:50])

    report = json.loads(fsdpdoctor("analyze", exposed, "--json").stdout)

    assert [row["rank"] for row in report["ranks"]] == [0]
    assert report["health"]["missing_ranks"] == [1]
    assert any(
        "rank00001.json is damaged" in said for said in report["health"]["warnings"]
    )


def test_a_file_that_cannot_be_written_is_said(exposed: Path, tmp_path: Path) -> None:
    """One line, and exit status 2."""
    path = tmp_path / "none" / "r.html"

    assert one_line(fsdpdoctor("analyze", exposed, "--out", path)) == (
        f"Error: cannot write {path}: No such file or directory"
    )


def test_a_run_does_not_differ_from_itself(exposed: Path) -> None:
    """`differences` is empty."""
    result = fsdpdoctor("compare", exposed, exposed, "--json")

    assert json.loads(result.stdout)["differences"] == []
    assert "Nothing differs" in fsdpdoctor("compare", exposed, exposed).stdout


def test_comparing_names_settings_before_times(tmp_path: Path, exposed: Path) -> None:
    """One unit not resharded, its wait gone, the step 4 ms shorter."""
    shorter = "\n".join(
        f"{name} {cells[:7]}{cells[11:]}"
        for name, cells in (line.split() for line in PICTURE.strip().splitlines())
    )
    units = (unit("layers.0"), unit("layers.1", reshard_after_forward=False))
    other = save(
        tmp_path / "other",
        *(draw(shorter, rank=rank, units=units) for rank in (0, 1)),
    )

    result = fsdpdoctor("compare", exposed, other, "--json")
    found = json.loads(result.stdout)["differences"]

    assert found[0] == {
        "kind": "setting",
        "figure": "reshard_after_forward",
        "unit": "layers.1",
        "rank": None,
        "a": True,
        "b": False,
        "change": None,
        "noise": None,
    }
    changes = {
        (d["figure"], d["unit"]): d["change"] for d in found if d["kind"] == "time"
    }
    assert changes == {
        ("step_time_ns", None): -4 * MS,
        ("budget_ns_per_step.exposed_all_gather", None): -4 * MS,
        ("exposed_ns.forward.all_gather", "layers.1"): -4 * MS,
    }
    shown = fsdpdoctor("compare", exposed, other).stdout
    assert shown.startswith("median step 16.0 ms to 12.0 ms\n")
    assert "The step is 25.0 % faster; one setting was changed: resh" in shown
    assert "layers.1  reshard_after_forward" in shown


def test_noise_is_no_difference(tmp_path: Path) -> None:
    """Steps of 16 to 20 ms, in another order: the medians lie within the spread."""
    sides = []
    for name, late in (("a", (0, 1, 2, 3, 4, 2)), ("b", (4, 3, 1, 1, 0, 3))):
        data = draw(PICTURE)
        steps = tuple(
            replace(step, end_ns=step.end_ns + more * MS)
            for step, more in zip(data.steps, late, strict=True)
        )
        sides.append(save(tmp_path / name, replace(data, steps=steps)))

    result = fsdpdoctor("compare", *sides, "--json")

    assert json.loads(result.stdout)["differences"] == []


def test_explains_every_finding() -> None:
    """By code, by name, and all of them in a list."""
    listed = fsdpdoctor("explain").stdout.splitlines()

    codes = [f"{detector.code}  {detector.name}" for detector in ALL]
    assert listed[: len(codes)] == codes
    assert listed[-1].startswith("Words: step, judged step, micro-batch, ")
    meaning = "tail: A cause of exposed time: the collective was done, and compute"
    assert fsdpdoctor("explain", "Tail").stdout.startswith(meaning)
    by_code = fsdpdoctor("explain", "fd101").stdout
    assert by_code == fsdpdoctor("explain", "exposed-all-gather").stdout
    assert by_code.startswith("FD101 exposed-all-gather\n\nCompute stood still")
    assert one_line(fsdpdoctor("explain", "FD000")).startswith(
        "Error: there is no finding FD000; there are FD101, "
    )


def test_imported_traces_give_the_report_of_the_traces(tmp_path: Path) -> None:
    """The same figures, also of what lies outside the steps; warnings stay."""
    traces = real("dlrm_8ranks")
    fsdpdoctor("import", traces, "--out", tmp_path / "run")

    direct = json.loads(fsdpdoctor("analyze", traces, "--no-cache", "--json").stdout)
    again = json.loads(fsdpdoctor("analyze", tmp_path / "run", "--json").stdout)

    said = direct["health"].pop("warnings")
    kept = again["run"].pop("notes") + again["health"].pop("warnings")
    assert direct["run"].pop("notes") == []
    assert kept == said
    assert again == direct
    assert "holds a run already" in one_line(
        fsdpdoctor("import", traces, "--out", tmp_path / "run")
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(command: str) -> None:
    """Its help has a line that can be typed."""
    result = fsdpdoctor(command, "--help")

    assert result.exit_code == 0
    assert f"\n  fsdpdoctor {command}" in result.stdout


def test_wrong_usage_is_status_2(exposed: Path) -> None:
    """An unknown format, and no path."""
    assert fsdpdoctor("analyze", exposed, "--format", "pdf").exit_code == 2
    assert fsdpdoctor("analyze").exit_code == 2


def test_a_pipe_gets_no_escapes_and_may_close(exposed: Path) -> None:
    """`| head -1` ends the command quietly; colours are for terminals."""
    command = f"{sys.executable} -m fsdpdoctor analyze {exposed}"
    shown = subprocess.run(
        f"{command} | head -1", shell=True, capture_output=True, check=False
    )

    assert shown.stderr == b""
    assert shown.stdout.startswith(b"Compute waits 50.0 % of every step")
    assert shown.stdout.count(b"\n") == 1


def test_an_ascii_terminal_gets_escapes_not_a_traceback(tmp_path: Path) -> None:
    """A unit's name may hold what the terminal's encoding has not."""
    run = save(tmp_path / "run", draw(PICTURE, units=(unit("caf\u00e9"), unit("b"))))
    shown = subprocess.run(
        [sys.executable, "-m", "fsdpdoctor", "analyze", str(run)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )

    assert (shown.returncode, shown.stderr) == (0, b"")
    assert b"caf\\xe9" in shown.stdout


SAY_IMPORTS = """
import os, sys
before = set(sys.modules)  # a tracer's own
from fsdpdoctor.cli import main
main(["analyze", sys.argv[1], "--json"], standalone_mode=False)
for name in ("fsdpdoctor.importers", "multiprocessing", "numpy.ma", "rich", "sqlite3"):
    if name in sys.modules.keys() - before:
        print("imported", name, file=sys.stderr)
if "OPENBLAS_NUM_THREADS" in os.environ:
    print("a variable of ours is left", file=sys.stderr)
print(len(os.listdir("/proc/self/task")), "thread", file=sys.stderr)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc")
def test_a_recorded_run_needs_none_of_what_others_need(exposed: Path) -> None:
    """Readers of traces, processes, terminals, masked arrays, threads of a library:
    each of them costs more than the run's own figures.
    """
    variables = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    said = subprocess.run(
        [sys.executable, "-c", SAY_IMPORTS, str(exposed)],
        capture_output=True,
        text=True,
        env=variables,
        check=True,
    )
    assert said.stderr == "1 thread\n"
