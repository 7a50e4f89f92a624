"""`fsdpdoctor rehearse` and `fsdpdoctor demo`, as a user types them."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import ROOT, Kind, RunHeader
from tests.rig.ranks import TRAIN, run_python


def rehearse(folder: Path, *options: str) -> tuple[RunHeader, RankData]:
    """The run that a rehearsal of the rig's script leaves."""
    recording = ("--out", str(folder), "--every", "1", "--no-report")
    training = (str(TRAIN), "--steps", "3")
    run_python("-m", "fsdpdoctor", "rehearse", *options, *recording, *training).ok()
    run = open_run(folder)
    assert run.missing_ranks == ()  # one rank stands for all
    return run.header, run.sources[0].load()


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("job", "shards"), [("8x1", 8), ("64x1", 64), ("512x1", 512), ("8x64", 64)]
)
def test_a_rehearsal_leaves_a_run_with_the_jobs_shards(
    job: str, shards: int, tmp_path: Path
) -> None:
    """One script at 8, 64 and 512 ranks and as HSDP: shard bytes are exact."""
    options = ("--mesh", job) if job == "8x64" else ("--world-size", str(shards))
    header, data = rehearse(tmp_path, *options)

    # Of a layer of width 64: 4 x (64, 64), 3 x 64 x 128 and two norms of 64, in
    # rows along dimension 0, padded to a multiple of the shards; 4 bytes each.
    rows = [(64, 64)] * 4 + [(128, 64)] * 2 + [(64, 128)] + [(64, 1)] * 2
    shard_bytes = sum(-(-n // shards) * width * 4 for n, width in rows)
    layers = [u for u in data.header.units if u.fqn != ROOT]

    assert header.source == "rehearsal"
    assert header.world_size == (512 if job == "8x64" else shards)
    assert header.notes[0].startswith("losses are meaningless: a rehearsal of rank 0")
    assert [u.shard_bytes for u in layers] == [shard_bytes] * 4
    assert [u.unsharded_bytes for u in layers] == [shard_bytes * shards] * 4
    all_reduces = sum(int((s.spans.kind == Kind.ALL_REDUCE).sum()) for s in data.steps)
    assert all_reduces == (15 if job == "8x64" else 0)
    assert data.header.ended == "done"


@pytest.mark.ranks
def test_a_rehearsal_ends_as_its_script_does(tmp_path: Path) -> None:
    """Arguments, exit status and traceback are the script's own."""
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(sys.argv[1:])\nraise SystemExit(7)\n")
    options = ("--world-size", "8", "--out", str(tmp_path / "run"), "--no-report")
    ended = run_python("-m", "fsdpdoctor", "rehearse", *options, str(script), "--a")

    assert (ended.status, ended.stdout) == (7, "['--a']\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "say how big the job is: --world-size 64 or --mesh 8x64"),
        (("--mesh", "8by64"), "--mesh is '8by64'; expected replicas x shards"),
        (("--mesh", f"2x{'9' * 5000}"), "expected replicas x shards"),
        (
            ("--world-size", "999999999999"),
            "a job of 999,999,999,999 ranks; expected at most 1,048,576",
        ),
        (("--world-size", "8", "--steps", f"1:{'9' * 5000}"), "expected A:B"),
        (("--mesh", "2x4", "--world-size", "9"), "8 ranks, --world-size says 9"),
        (("--world-size", "1"), "--world-size is 1; a rehearsal needs at least 2"),
        (("--world-size", "8", "--bandwidth", "x"), "'x' is no link; expected one of"),
        (("--world-size", "8", "--nproc-per-node", "0"), "expected at least 1"),
        (("--world-size", "8", "--verdict", "v.json"), "--verdict needs --on"),
        (("--world-size", "8", "--apply", "no.json"), "no.json"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(
    arguments: tuple[str, ...], message: str
) -> None:
    """One line, exit status 2, before anything starts."""
    result = CliRunner().invoke(main, ["rehearse", *arguments, str(TRAIN)])

    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.ranks
def test_the_demo_shows_real_figures(tmp_path: Path) -> None:
    """Two gloo ranks train: block-wrapped, six blocks and a root, twelve steps."""
    folder = tmp_path / "run"
    shown = run_python("-m", "fsdpdoctor", "demo", "--out", str(folder)).ok()
    run = open_run(folder)
    ranks = [source.load() for source in run.sources]

    assert [data.header.ended for data in ranks] == ["done", "done"]
    for data in ranks:
        assert len(data.steps) == 12
        kinds = data.steps[5].spans.kind
        assert int((kinds == Kind.ALL_GATHER).sum()) == 13
        assert int((kinds == Kind.REDUCE_SCATTER).sum()) == 7
    assert "step 12 of 12" in shown.stdout
    assert f"The run is in {folder}. Try next:" in shown.stdout
    assert "exposed" in shown.stderr


@pytest.mark.parametrize("command", [["demo"], ["rehearse", "--world-size", "8", "x"]])
def test_without_torch_it_says_so(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One clear line, exit status 2."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    result = CliRunner().invoke(main, command)

    assert result.exit_code == 2
    assert result.stderr.startswith("Error: recording needs torch, which is not")
    assert result.stderr.count("\n") == 1
