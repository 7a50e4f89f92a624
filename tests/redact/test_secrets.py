"""Planted secrets are in nothing that is written, see `docs/secrets.md`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from tests.redact import planted as planting
from tests.redact.planted import planted
from tests.rig.ranks import run_python

PAGES = ("", "timeline", "units", "collectives", "ranks", "memory", "whatif")
ADDRESSES = ("/", "/timeline", "/api/meta?run=run", "/_dash-layout")

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training left that had all of them, and told some as it failed."""
    folder = tmp_path_factory.mktemp("secrets") / "run"
    given = planted()
    finished = run_python(
        *("-m", "fsdpdoctor", "run", "--nproc-per-node", "1", "--no-report"),
        *("--out", str(folder), planting.__file__ or "", *given.arguments),
        env=given.environment,
    )
    assert finished.status != 0
    return folder


def found_in(content: bytes) -> list[str]:
    """The secrets that some bytes hold."""
    return [secret for secret in planted().secrets if secret.encode() in content]


def test_all_are_planted() -> None:
    """24, 8 and 12, each where it is said to be."""
    given = planted()
    told = " ".join((*given.arguments, *given.messages, *given.environment.values()))

    assert len(given.secrets) == len(set(given.secrets)) == 24 + 8 + 12
    assert len(found_in(told.encode())) == len(given.secrets)


def test_none_is_in_the_record(run: Path) -> None:
    """It has the exception and the command, and the other words of both."""
    header = json.loads((run / "rank00000.json").read_text())
    command = json.loads((run / "run.json").read_text())["command"]

    assert "wrong password <redacted>" in header["end"]["message"]
    assert header["ended"].startswith("exception: RuntimeError: 401 for")
    assert "--pass" in command
    assert {file.name: found_in(file.read_bytes()) for file in run.iterdir()} == {
        file.name: [] for file in run.iterdir()
    }


@pytest.mark.parametrize(
    "arguments",
    [
        ("analyze",),
        ("analyze", "--json"),
        ("analyze", "--format", "markdown"),
        ("analyze", "--format", "html"),
        ("hang",),
        ("hang", "--json"),
        ("whatif", "--code", "fsdp2"),
    ],
)
def test_none_is_printed(run: Path, arguments: tuple[str, ...]) -> None:
    """In no format; what is printed is about this run."""
    command, *options = arguments
    result = CliRunner().invoke(main, [command, str(run), *options])

    assert result.exit_code in (0, 1, 2)
    assert len(result.output) > 100
    assert found_in(result.output.encode()) == []


@pytest.mark.parametrize("tool", ["perfetto", "kineto", "tensorboard", "csv"])
def test_none_is_exported(run: Path, tmp_path: Path, tool: str) -> None:
    """Traces, unpacked, charts and tables."""
    out = tmp_path / tool
    arguments = ["export", str(run), "--to", tool, "--out", str(out)]
    assert CliRunner().invoke(main, arguments).exit_code == 0

    files = [
        gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        for content in (path.read_bytes() for path in out.rglob("*") if path.is_file())
    ]

    assert files
    assert [found_in(content) for content in files] == [[] for _ in files]


@pytest.fixture(scope="module")
def shown(run: Path) -> Any:
    """The run on a server: what a page of it is made of, and what is answered."""
    pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
    from fsdpdoctor.run import open_run
    from fsdpdoctor_dashboard.data.run_registry import Library

    library = Library([run], open_run)
    library.wait("run")
    return library


@pytest.mark.parametrize("page", PAGES)
def test_none_is_on_a_page(shown: Any, page: str) -> None:
    """All that a page's components hold."""
    from plotly.utils import PlotlyJSONEncoder

    from fsdpdoctor_dashboard.pages.components import Context
    from fsdpdoctor_dashboard.pages.requests.made_pages import MadePages
    from fsdpdoctor_dashboard.pages.requests.page_request import PAGES as MODULES

    context = Context(base="/", theme="light", runs=(shown.get("run"),), query={})
    made = MadePages().page(MODULES[page][1], (page,), context)
    content = json.dumps(made, cls=PlotlyJSONEncoder)

    assert len(content) > 100
    assert found_in(content.encode()) == []


@pytest.mark.parametrize("address", ADDRESSES)
def test_none_is_answered(shown: Any, address: str) -> None:
    """What a browser gets that has the token."""
    from tests.dashboard.client import Client

    client = Client(shown)
    client.get("/?token=secret")
    status, content = client.get(address)

    assert status == 200
    assert found_in(content) == []
