"""What is taken out of a run that is given away, and what has to stay."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.cli import main
from fsdpdoctor.cli.export import WRITERS
from fsdpdoctor.exporters.redacted_run import Cleaner, redacted, without_words
from fsdpdoctor.rank_end import EndKind, Fatal, Frame, Position, RankEnd, Stall
from fsdpdoctor.renderers import RENDERERS
from fsdpdoctor.report import report_of
from fsdpdoctor.run import RankData, in_memory, open_run, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.testing import draw, measured, unit
from tests.redact.test_secrets import PAGES
from tests.rig.changed import replace

PICTURE = """
    forward     0.1.
    backward    ..10
"""

PLANTED = (
    "node-17.cluster.example.org",  # a host
    "mallory",  # a user, by the home folder
    "secret-project",  # a folder
    "--lr=0.00314",  # of the command line
    "eth-private0",  # the environment
    "10.20.30.40",
    "https://tracker.example.org/run/7",
    "mallory@example.org",
    "the customer's name is Acme",  # an exception's words
    "acme_weights = load('acme')",  # a line of code
    "hf_AbCdEfGhIjKlMnOpQrStUvWx",  # a token that got into a note
    "C:\\\\Users\\\\mallory",
)


def planted() -> RankData:
    """A rank whose record holds all of it."""
    host, _, _, _, variable, address, url, mail, words, code, token, drive = PLANTED
    frame = Frame(
        file="/home/mallory/secret-project/train.py",
        line=7,
        function="main",
        user=True,
        code=code,
    )
    library = Frame(
        file="torch/distributed/distributed_c10d.py",
        line=9,
        function="all_reduce",
        user=False,
    )
    position = Position(step=3, stack=(frame, library))
    end = RankEnd(
        kind=EndKind.EXCEPTION,
        time_unix_ns=5,
        exception="ValueError",
        message=words,
        position=position,
    )
    data = draw(PICTURE)
    return replace(
        data,
        header=replace(
            data.header,
            host=host,
            environment={"NCCL_SOCKET_IFNAME": variable},
            ended=f"exception: ValueError: {words}",
            end=end,
            warnings=(f"{address} and {url} and {mail}", f"{drive}\\\\x.py", token),
        ),
        names=(*data.names, "/home/mallory/secret-project/train.py:43"),
        stall=Stall(rank=0, pid=1, written_unix_ns=2, after_s=3.0, position=position),
        fatal=Fatal(reason="Aborted", stack=(frame, library)),
    )


def saved(folder: Path) -> Path:
    """A run with all that was planted."""
    header = RunHeader(
        run_id="mallory-7",
        source="recorded",
        world_size=1,
        command=("train.py", PLANTED[3]),
        notes=(f"started by mallory on {PLANTED[0]}",),
    )
    save_run(in_memory(header, [planted()]), folder)
    return folder


def bundled(tmp_path: Path, *options: str) -> dict[str, bytes]:
    """The archive's members by name, of a run with all that was planted."""
    folder = saved(tmp_path / "run")
    out = tmp_path / "out.tar.gz"
    asked = ["bundle", str(folder), "--out", str(out), *options]
    ended = CliRunner().invoke(main, asked)
    assert ended.exit_code == 0, ended.output
    with tarfile.open(fileobj=io.BytesIO(out.read_bytes())) as archive:
        assert {(m.uid, m.uname, m.mtime) for m in archive} == {(0, "", 0)}
        return {
            member.name: read.read()
            for member in archive
            if (read := archive.extractfile(member)) is not None
        }


@pytest.mark.parametrize("option", ["--redact", "--mask-names"])
def test_nothing_that_was_planted_is_in_the_archive(
    option: str, tmp_path: Path
) -> None:
    """Of twelve: none, in no member; without the option most are."""
    whole = b"".join(bundled(tmp_path, option).values())
    plain = b"".join(bundled(tmp_path / "plain").values())

    assert [word for word in PLANTED if word.encode() in whole] == []
    assert b"mallory" not in whole
    there = [word for word in PLANTED if word.encode() in plain]
    assert PLANTED[0] in there
    assert PLANTED[8] in there


@pytest.mark.parametrize("tool", list(WRITERS))
@pytest.mark.parametrize("option", ["--redact", "--mask-names"])
def test_nothing_that_was_planted_is_exported(
    tool: str, option: str, tmp_path: Path
) -> None:
    """To no other tool, unpacked."""
    if tool == "parquet":
        pytest.importorskip("pyarrow", reason="needs fsdpdoctor[parquet]")
    folder = tmp_path / "out"
    asked = ["export", str(saved(tmp_path / "run")), str(folder), "--to", tool, option]
    assert CliRunner().invoke(main, asked).exit_code == 0
    files = [path for path in folder.rglob("*") if path.is_file()]
    whole = b"".join(
        gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        for content in (path.read_bytes() for path in files)
    )

    assert len(whole) > 100
    assert [word for word in PLANTED if word.encode() in whole] == []
    assert b"mallory" not in whole


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run in an archive that was unpacked."""
    folder = tmp_path_factory.mktemp("opened")
    for name, content in bundled(folder, "--redact").items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "fsdpdoctor" / "run"


@pytest.mark.parametrize("format_", list(RENDERERS))
def test_nothing_that_was_planted_is_in_a_report_of_it(
    format_: str, opened: Path
) -> None:
    """In no format."""
    text = RENDERERS[format_](report_of(measure(open_run(opened))))

    assert len(text) > 100
    assert [word for word in (*PLANTED, "mallory") if word in text] == []


def test_nothing_that_was_planted_is_in_metrics(opened: Path, tmp_path: Path) -> None:
    """Neither of the archive's run, nor of the run as it was recorded."""
    client = pytest.importorskip(
        "prometheus_client", reason="needs fsdpdoctor[prometheus]"
    )
    from fsdpdoctor.cli.processes.metrics import RunCollector

    for folder in (opened, saved(tmp_path / "run")):
        registry = client.CollectorRegistry()
        registry.register(RunCollector(folder))
        text = client.generate_latest(registry).decode()
        assert "fsdpdoctor_step_seconds" in text
        assert [word for word in (*PLANTED, "mallory") if word in text] == []


@pytest.mark.parametrize("page", PAGES)
def test_nothing_that_was_planted_is_on_a_page_of_it(page: str, opened: Path) -> None:
    """All that its components hold."""
    pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
    from plotly.utils import PlotlyJSONEncoder

    from fsdpdoctor_dashboard.data.run_registry import Library
    from fsdpdoctor_dashboard.pages.components import Context
    from fsdpdoctor_dashboard.pages.requests.made_pages import MadePages
    from fsdpdoctor_dashboard.pages.requests.page_request import PAGES as MODULES

    library = Library([opened], open_run)
    library.wait("run")
    run: Any = library.get("run")
    context = Context(base="/", theme="light", runs=(run,), query={})
    made = MadePages().page(MODULES[page][1], (page,), context)
    content = json.dumps(made, cls=PlotlyJSONEncoder)

    assert len(content) > 100
    assert [word for word in (*PLANTED, "mallory") if word in content] == []


def test_the_archive_opens_and_its_figures_are_the_run_s(tmp_path: Path) -> None:
    """Step, units, what a stack stands in; and the report lies beside it."""
    members = bundled(tmp_path, "--redact")
    for name, content in members.items():
        path = tmp_path / "opened" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    (data,) = open_run(tmp_path / "opened" / "fsdpdoctor" / "run").load()
    report = json.loads(members["fsdpdoctor/report.json"])
    before = report_of(measured(planted()))

    assert report["step_time_ns"]["median"] == before.step_time_ns.median
    assert [row["unit"] for row in report["units"]] == [u.unit for u in before.units]
    assert data.header.host == "host0"
    assert data.header.end is not None
    assert data.header.end.position is not None
    files = [frame.file for frame in data.header.end.position.stack]
    assert files == ["train.py", "torch/distributed/distributed_c10d.py"]
    assert data.stall is not None
    assert data.fatal is not None
    assert [frame.function for frame in data.fatal.stack] == ["main", "all_reduce"]
    assert b"environment" in members["fsdpdoctor/LEFT_OUT.txt"]


def test_the_words_by_which_an_error_is_known_stay() -> None:
    """Who lost a peer is not who failed: without them another rank is blamed."""
    text = "[/w/gloo/pair.cc:537] Read error [10.0.0.1]:56197: Connection reset by peer"
    assert without_words(text) == "(left out) Connection reset"
    assert without_words("the customer's name is Acme") == "(left out)"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("src/deep/train.py:43", "train.py:43"),
        ("/data/x/train.py:43 (item)", "train.py:43 (item)"),
        ("/usr/lib/python3.11/json/decoder.py:3", "/lib/python3.11/json/decoder.py:3"),
        ("/v/site-packages/peft/tuners.py:3", "peft/tuners.py:3"),
        ("torch/nn/modules/module.py", "torch/nn/modules/module.py"),
        ("layers.0 and/or layers.1", "layers.0 and/or layers.1"),
        ("on gpu-box and gpu-box2", "on host0 and gpu-box2"),
        ("aten::add", "aten::add"),
        ("float32[10, 3]", "float32[10, 3]"),
    ],
)
def test_a_text_loses_folders_and_hosts_alone(text: str, clean: str) -> None:
    """Files keep their names, libraries their folders, everything else its words."""
    assert Cleaner(["gpu-box"], [])(text) == clean


def test_modules_are_masked_where_it_is_asked(tmp_path: Path) -> None:
    """The same name by the same word, in units and in what is said of them."""
    data = draw(PICTURE, units=(unit("acme_encoder.0"), unit("acme_encoder.1")))
    header = RunHeader(run_id="r", source="recorded", world_size=1)
    run = in_memory(header, [data])
    masked = redacted(run, Cleaner([], []), lambda t: t.replace("acme_", "part"))
    (found,) = masked.load()
    assert [u.fqn for u in found.header.units] == ["partencoder.0", "partencoder.1"]
    assert found.steps == data.steps
