"""The page that opens reports: it holds what it needs, and may do nothing else."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli.sharing.viewer import command
from fsdpdoctor.renderers.html import render
from fsdpdoctor.renderers.json import render as to_json
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Entry, Loading, open_entry
from fsdpdoctor_dashboard.server.standalone_page import page_of
from fsdpdoctor_dashboard.server.viewer_page import viewer_page
from tests.dashboard.conftest import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_its_policy_allows_its_own_scripts_alone() -> None:
    """Each by its hash; nothing is loaded, and nothing sent."""
    page = viewer_page()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    allowed = set(re.findall(r"sha256-([^&]*)&", policy[1]))
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    hashes = {
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in scripts
    }

    assert allowed == hashes
    assert policy[1].startswith("default-src &#x27;none&#x27;")
    assert "connect-src" not in policy[1]
    assert not re.search(r"""(src|href)=["']?https?:""", page)


def test_it_is_written_by_a_command(tmp_path: Path) -> None:
    """One file, the same each time."""
    out = tmp_path / "viewer.html"
    done = CliRunner().invoke(command, ["--out", str(out)])

    assert done.exit_code == 0
    assert out.read_text(encoding="utf-8") == viewer_page()


EVIL = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>"


@pytest.mark.slow
def test_dropped_files_are_shown(
    browser: Browser, runs: dict[str, Path], tmp_path: Path
) -> None:
    """Two reports with their timelines under each other, a JSON with its words; what
    it cannot read is said, and no script of a file runs.
    """
    from tests.dashboard.visits import Visit

    files = []
    for name in ("before", "after"):
        opened = open_entry(Entry(id=name, path=runs[name]), open_run, Loading())
        addition = page_of(opened.measures, opened.store, opened.report, limit=None)
        page = render(opened.report, addition).replace("</h1>", f"{EVIL}</h1>", 1)
        files.append(tmp_path / f"{name}.html")
        files[-1].write_text(page, encoding="utf-8")
    (tmp_path / "before.json").write_text(to_json(opened.report), encoding="utf-8")
    (tmp_path / "rank00000.arrows").write_bytes(b"\xff\xff\xff\xff" * 9)
    viewer = tmp_path / "viewer.html"
    viewer.write_text(viewer_page(), encoding="utf-8")
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    found = Visit(context.new_page(), Served(base="file://", token=""))
    found.page.goto(viewer.as_uri())
    found.page.set_input_files("#files", files)
    found.until("window.fsdpTimeline && fsdpTimeline.sharp")
    assert found.page.evaluate("fsdpTimeline.tracks.length") == 8
    assert found.page.locator("#words h1").count() == 2
    found.page.locator("[data-run='after.html'] [data-jump]").first.click()
    found.until("fsdpTimeline.focus.source.id === 'after.html'")
    assert found.page.evaluate("window.hacked") is None
    assert found.page.locator("#words script, #words img").count() == 0
    found.picture("viewer")
    found.page.set_input_files(
        "#files", [tmp_path / "before.json", tmp_path / "rank00000.arrows"]
    )
    found.until("document.querySelector('#said').textContent")
    said = found.page.locator("#said").inner_text()
    assert said.startswith("rank00000.arrows: a recorded run's own files are not read")
    assert found.page.locator("#words h1").inner_text() == opened.report.verdict.text
    assert found.page.locator("#fd-timeline").is_hidden()
    # The files' own handlers, which the page's policy refuses.
    assert [line for line in found.wrong if "has been blocked" not in line] == []
    context.close()
