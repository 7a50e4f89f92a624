"""The picture to share: what it says, and that it stays within its frame."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.quantities import ms
from fsdpdoctor.renderers.reading.anonymous import KEPT
from fsdpdoctor.report import report_of
from fsdpdoctor.run import open_run
from fsdpdoctor_dashboard.data.run_registry import Library, OpenRun
from fsdpdoctor_dashboard.server.share_card import HEIGHT, WIDTH, share_card
from tests.rig.changed import replace
from tests.rig.ranks import run_python


@pytest.fixture
def run(runs: dict[str, Path]) -> OpenRun:
    """One with exposed time."""
    return Library([runs["after"]], open_run).wait("after")


def test_it_says_what_the_report_says(run: OpenRun) -> None:
    """The verdict, the mean step, the largest parts of the budget, and one step."""
    drawn = share_card(run.report, run.store)
    words = " ".join(re.findall(r"<text[^>]*>([^<]*)", drawn))
    rank = run.measures.ranks[0]
    judged = sorted(rank.steps.duration_ns[rank.judged].tolist())

    assert run.report.verdict.text in words
    assert f"now {ms(run.report.step_time_ns.mean or 0)}" in words
    assert "backward " in words
    assert f"of rank 0: {ms(judged[len(judged) // 2])}" in words


@pytest.mark.parametrize("times", [1, 40])
def test_it_fits_its_frame(run: OpenRun, times: int) -> None:
    """Nothing is drawn outside, however long the verdict; it is valid and loads
    nothing.
    """
    verdict = replace(run.report.verdict, text="Compute waits <&> for it. " * times)
    drawn = share_card(replace(run.report, verdict=verdict), run.store)
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    right = [
        float(r.get("x", 0)) + float(r.get("width", 0))
        for r in root.iter(f"{space}rect")
    ]
    texts = [(float(t.get("y", 0)), t.text or "") for t in root.iter(f"{space}text")]

    assert max(right) <= WIDTH
    assert max(y for y, _ in texts) < HEIGHT
    assert len([words for y, words in texts if y < 180]) <= 3
    assert max(len(words) for y, words in texts if y < 180) <= 60
    assert "href" not in drawn


def test_no_word_breaks_it(run: OpenRun) -> None:
    """A device whose name is 4,000 characters long or is no text in XML."""
    for name, shown in {
        "A" * 4000: "...",
        "\x1b[31m\ufffe": "\\x1b[31m\\ufffe",
    }.items():
        about = replace(run.report.run, device_name=name)
        drawn = share_card(replace(run.report, run=about), run.store)
        texts = [t.text or "" for t in ElementTree.fromstring(drawn).iter()]

        assert [words for words in texts if words.endswith(shown)]
        assert max(map(len, texts)) <= 90


def test_the_command_writes_a_page_and_a_picture(tmp_path: Path) -> None:
    """Without the names of modules where that is asked: in no word of either file."""
    out = tmp_path / "shared"
    case = Path(__file__).parents[3] / "traces" / "tables-in-root"
    run_python(
        *("-m", "fsdpdoctor", "share", str(case), "--anonymous", "--out", str(out))
    ).ok()
    page = (out / "report.html").read_text()
    picture = (out / "card.svg").read_text()
    report = report_of(measure(open_run(case)))
    classes = {row.module_class for row in report.units} - {""}
    names = {part for row in report.units for part in row.unit.split(".")} - {"<root>"}
    hidden = {
        name for name in (*classes, *names) if name not in KEPT and not name.isdigit()
    }

    assert hidden
    said = re.sub(
        r"<script(?! type).*?</script>|<style.*?</style>", "", page, flags=re.S
    )
    words = set(re.findall(r"[A-Za-z_]\w*", said + picture))
    assert words & hidden == set()
    assert ElementTree.fromstring(picture).get("width") == "1200"
    assert 'property="og:image" content="card.svg"' in page
    assert "data:image/svg+xml;base64," in page
