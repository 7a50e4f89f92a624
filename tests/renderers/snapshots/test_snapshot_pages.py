"""Memory snapshots as they are read: terminal, Markdown, page and JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.memory_snapshot.compare_ranks import compare_ranks
from fsdpdoctor.memory_snapshot.diagnose_snapshot import diagnose_snapshot
from fsdpdoctor.renderers.snapshots.snapshot_pages import (
    SNAPSHOT_RENDERERS,
    SnapshotDocument,
)
from tests.memory_snapshot.drawn_snapshot import COPY_OUT, LOOP, Drawn, draw_steps

HOSTILE = "<script>alert(1)</script>\x1b[31m|`"


def two_ranks(folder: Path) -> list[Path]:
    """Rank 1 keeps the losses of its six steps, and ran out of memory."""
    files = []
    for rank, leak in ((0, 0), (1, 640)):
        drawn = Drawn()
        draw_steps(drawn, 6, leak=leak)
        if leak:
            drawn.oom(1 << 30, 5 << 20, COPY_OUT)
        files.append(drawn.write(folder / f"rank{rank}.pickle"))
    return files


def document(files: list[Path]) -> SnapshotDocument:
    """As `analyze` makes it."""
    reports = tuple(diagnose_snapshot(file) for file in files)
    return SnapshotDocument(snapshots=reports, comparison=compare_ranks(reports))


def invoke(*arguments: str) -> tuple[int, str]:
    """Exit status and output of a command."""
    result = CliRunner().invoke(main, [*arguments])
    return result.exit_code, result.output


def test_the_terminal_says_the_peak_and_what_it_was(tmp_path: Path) -> None:
    """Line by line, of one file."""
    text = SNAPSHOT_RENDERERS["text"](document(two_ranks(tmp_path)[1:]))

    lines = [" ".join(line.split()) for line in text.splitlines()]
    expected = [
        "activations 5.86 KiB 24.8 % 2",
        "unsharded gradients 4.88 KiB 20.7 % 1",
        "job/train.py:52 the script's own 640 B 3.75 KiB 5",
        "5.86 KiB in 2 allocations: activations of layers.0, layers.1",
    ]
    assert [line for line in expected if line not in lines] == []
    assert lines[:2] == [
        f"rank1.pickle: at most 23.6 KiB held of 20.0 MiB reserved, {WHEN}",
        f"peak at 2023-11-14 22:13:20.004320 UTC; 320 events, 6 steps {BY}",
    ]
    assert (
        "OUT OF MEMORY: 1.00 GiB asked for, gathered parameters, at job/train.py:50; "
        "the device had 5.00 MiB free, 9.61 KiB were held, 20.0 MiB reserved that "
        "nothing held (2023-11-14 22:13:20.004760 UTC)"
    ) in lines


WHEN = "4.31 ms into the history, activations the largest part of it"
BY = "by ranges of the optimizer's step"


def test_ranks_stand_side_by_side(tmp_path: Path) -> None:
    """Which holds most, and by what it differs from the one with least."""
    text = SNAPSHOT_RENDERERS["text"](document(two_ranks(tmp_path)))

    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "rank 1 holds most at its peak, 3.12 KiB more than rank 0"
    assert "the script's own +3.12 KiB 3.12 KiB 0 B" in lines
    assert "job/train.py:52 +3.12 KiB 3.12 KiB 0 B" in lines


def test_equal_ranks_do_not_differ(tmp_path: Path) -> None:
    """No table of differences, and it is said."""
    drawn = Drawn()
    draw_steps(drawn, 2)
    files = [drawn.write(tmp_path / f"rank{rank}.pickle") for rank in range(3)]

    found = document(files).comparison

    assert found is not None
    assert (found.spread_bytes, found.differences) == (0, ())
    text = SNAPSHOT_RENDERERS["text"](document(files))
    assert text.startswith("all 3 files hold the same at its peak")


def test_ranks_without_history_are_compared_as_they_end(tmp_path: Path) -> None:
    """One file without a peak, and none is told by its peak."""
    drawn = Drawn(recording=False)
    drawn.alloc("a", 5000, LOOP)
    files = [*two_ranks(tmp_path)[:1], drawn.write(tmp_path / "rank7.pickle")]

    found = document(files).comparison

    assert found is not None
    assert found.moment == "end"
    assert [file.held_bytes for file in found.files] == [6000, 5000]
    assert [file.rank for file in found.files] == [0, 7]


@pytest.mark.parametrize("format_", ["json", "markdown", "html", "text"])
def test_analyze_prints_every_format(tmp_path: Path, format_: str) -> None:
    """A folder of snapshots, or the files."""
    files = two_ranks(tmp_path)

    of_folder = invoke("analyze", str(tmp_path), "--format", format_)
    of_files = invoke("analyze", *map(str, files), "--format", format_)

    assert of_folder == of_files
    assert of_files[0] == 0
    assert "job/train.py:52" in of_files[1]


def test_the_json_has_the_whole(tmp_path: Path) -> None:
    """Both files, and what they differ by."""
    status, output = invoke("analyze", *map(str, two_ranks(tmp_path)), "--json")

    said = json.loads(output)
    assert status == 0
    assert said["schema_version"] == 1
    assert [one["rank"] for one in said["snapshots"]] == [0, 1]
    assert said["comparison"]["spread_bytes"] == 3200
    peak = said["snapshots"][1]["devices"][0]["peak"]
    assert peak["held_bytes"] == 24_200
    assert sum(row["bytes"] for row in peak["units"]) == 24_200


@pytest.mark.parametrize("format_", ["json", "markdown", "html", "text"])
def test_foreign_names_do_nothing(tmp_path: Path, format_: str) -> None:
    """A file, a function and metadata that would act in a terminal or a page."""
    drawn = Drawn()
    frames = ((f"/x/{HOSTILE}.py", 3, HOSTILE), *LOOP)
    drawn.alloc("a", 1000, frames, metadata=HOSTILE)
    drawn.write(tmp_path / "rank0.pickle")

    _, output = invoke("analyze", str(tmp_path / "rank0.pickle"), "--format", format_)

    assert "\x1b" not in output
    if format_ == "html":
        assert "<script>" not in output
    if format_ == "markdown":
        table = [line for line in output.splitlines() if line.startswith("|")]
        assert not any("<script>" in line.replace("\\<", "") for line in table)


def test_what_a_snapshot_has_not_is_refused(tmp_path: Path) -> None:
    """Findings, SARIF, and company of another kind."""
    (file, other) = map(str, two_ranks(tmp_path))
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')

    assert invoke("analyze", file, "--fail-on", "warning") == (
        2,
        "Error: --fail-on and --with-hta are of runs: a memory snapshot has neither\n",
    )
    assert invoke("analyze", file, "--format", "sarif")[0] == 2
    status, output = invoke("analyze", file, other, str(tmp_path / "trace.json"))
    assert status == 2
    assert "is a CUDA memory snapshot" in output
    assert "analyze them apart" in output


def test_other_commands_say_where_a_snapshot_is_read(tmp_path: Path) -> None:
    """`view`, `whatif` and their like take runs."""
    status, output = invoke("whatif", str(two_ranks(tmp_path)[0]))

    assert status == 2
    assert "read it with `fsdpdoctor analyze`, apart from traces" in " ".join(
        output.split()
    )
