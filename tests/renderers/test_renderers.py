"""Every renderer: the same content from the same report, whatever it holds."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

import fsdpdoctor.renderers
from fsdpdoctor.finding import Advice, Confidence, Finding, NotJudged, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.renderers import RENDERERS
from fsdpdoctor.renderers.formatting import ranges, shorten, units, visible
from fsdpdoctor.renderers.palette import PARTS
from fsdpdoctor.renderers.report_view import content_of, exposed_line
from fsdpdoctor.renderers.text import show
from fsdpdoctor.report import Report, decode, diagnose, report_of
from fsdpdoctor.report.diagnosis import report_from
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import Evidence
from fsdpdoctor.storage.json_value import replace
from fsdpdoctor.testing import draw, measured, unit

TRACES = Path(__file__).parents[2] / "traces"

HOSTILE = (
    "<script>alert(1)</script>",
    "[bold red]x[/bold red] [link=http://evil]y[/link]",
    "a\x1b[31mred\x1b]0;title\x07\r\n| x |\n# heading",
    "\u202eright to left\u2066 \u2028 \ud800",
    "`code` *bold* **x** ![i](http://evil/i.png) <img src=x onerror=y>",
    "quotes \" and ' & ampersands",
    "x" * 10_000,
    "layers.0",
)
"""Names that terminals, Markdown and browsers would obey or choke on."""

ABSENT = "not measured: no device allocator statistics"

PICTURE = """
    micro_batch         000000000000
    issue               ..0.........
    all_gather          ...00.......
    wait                .0000.......
    forward             .....00.....
    backward            .......000..
    reduce_scatter      ..........0.
    rs_wait             ..........0.
    optimizer           ...........x
"""


def finding(name: str = "layers.0", summary: str = "it waits") -> Finding:
    """A finding with everything that can be shown."""
    return Finding(
        code="FD101",
        name="exposed-all-gather",
        severity=Severity.CRITICAL,
        confidence=Confidence.MEDIUM,
        summary=summary,
        units=(name, "layers.1", "layers.2"),
        phase="forward",
        ranks=(0, 1, 2, 5),
        cost_ns_per_step=4 * MS,
        cost_bytes=1 << 20,
        advice=(
            Advice(
                text="prefetch.",
                code='a = model.get_submodule("layers.0")\nb = 1',
                memory_cost_bytes=1 << 21,
                predicted_gain_ns=2 * MS,
            ),
        ),
    )


def report_with(*names: str, findings: tuple[Finding, ...] = ()) -> Report:
    """Two ranks whose first unit has each of some names in turn."""
    drawn = tuple(unit(name) for name in names) or None
    ranks = [draw(PICTURE, rank=rank, units=drawn) for rank in (0, 1)]
    not_judged = [
        NotJudged(code=code, name=name, needs=(Evidence.ALLOCATOR,), reason=ABSENT)
        for code, name in (("FD302", "allocator-pressure"), ("FD999", "another"))
    ]
    return report_from(measured(*ranks), findings, not_judged)


def terminal(report: Report, width: int, *, colours: bool) -> str:
    """What a terminal of some width is sent."""
    output = io.StringIO()
    show(
        report,
        Console(
            file=output,
            width=width,
            force_terminal=True,
            color_system="truecolor" if colours else None,
            markup=False,
        ),
    )
    return output.getvalue()


def test_every_renderer_is_listed() -> None:
    """RENDERERS names each module that has a `render`, and nothing else."""
    folder = Path(fsdpdoctor.renderers.__file__).parent
    modules = {
        path.stem
        for path in folder.glob("*.py")
        if re.search(r"^def render\(|import encode as render", path.read_text(), re.M)
    }

    assert modules == set(RENDERERS)


def test_the_verdict_comes_first_and_then_exposed_time_by_cause() -> None:
    """3 ms of 12: one before the issue, one queued, one the gather, then 1 of RS."""
    report = report_with()

    expected = (
        "exposed 5.00 ms of 12.0 ms per step on average (41.7 % of the step): "
        "all-gather 4.00 (host-late 1.00, queued 1.00, wire 2.00), "
        "reduce-scatter 1.00 (wire 1.00)"
    )
    assert RENDERERS["text"](report).splitlines()[:2] == [
        (
            "Compute waits 41.7 % of every step (5.00 ms of 12.0 ms on average), "
            "mostly for bytes on the wire."
        ),
        expected,
    ]
    assert exposed_line(report) == expected


def test_a_cause_that_cannot_be_told_is_not_zero() -> None:
    """One rank alone: the straggler's part is not measured."""
    assert exposed_line(report_of(measured(draw(PICTURE)))) == (
        "exposed 5.00 ms of 12.0 ms per step on average (41.7 % of the step): "
        "all-gather 4.00 (host-late 1.00, queued 1.00, straggler or wire 2.00), "
        "reduce-scatter 1.00 (straggler or wire 1.00)"
    )


def test_a_run_without_a_whole_step_says_so() -> None:
    """Neither an empty page nor 0 ms."""
    report = report_of(measured(draw(PICTURE, steps=0)))

    for format_ in ("text", "markdown", "html"):
        text = RENDERERS[format_](report)
        assert "exposed time not measured: no whole step was recorded" in text
        assert "Nothing was judged" in text


def test_all_formats_show_the_same_content() -> None:
    """Summary, place, cost, advice, code, tables, gaps and health are in each."""
    report = report_with(findings=(finding(summary="gathers wait 4 ms"),))
    content = content_of(report)

    for format_ in ("text", "markdown", "html"):
        shown = _plain(RENDERERS[format_](report))
        for words in (
            content.headline,
            *content.facts,
            "gathers wait 4 ms",
            "FD101 exposed-all-gather",
            "4.00 ms per step, 1.00 MiB",
            "layers.[0-2]; forward; ranks 0-2, 5",
            "prefetch (predicted gain 2.00 ms per step, costs 2.00 MiB per rank).",
            "b = 1",
            f"FD302 allocator-pressure, FD999 another: {ABSENT}",
            *content.health,
        ):
            assert _plain(words) in shown, (format_, words)


def _plain(text: str) -> str:
    """Words only: no tags, escapes or line ends."""
    text = re.sub(r"<style>.*?</style>", "", text, flags=re.S)
    text = re.sub(r"</?[a-z][^>]*>|<!doctype html>", "", text)
    for entity, character in (("&quot;", '"'), ("&#x27;", "'"), ("&amp;", "&")):
        text = text.replace(entity, character)
    text = re.sub(r"\\(.)", r"\1", text).replace("**", "")
    return re.sub(r"\s+", " ", text)


@pytest.mark.parametrize("width", [40, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    """Names of any length are cut, columns left out; only code may be wider."""
    names = ("model." + "transformer.encoder." * 12 + "layers.0", *HOSTILE)
    report = report_with(*names, findings=(finding(names[0]),))

    lines = terminal(report, width, colours=False).splitlines()
    code = {
        f"      {line}" for line in ('a = model.get_submodule("layers.0")', "b = 1")
    }

    assert [line for line in lines if len(line) > width and line not in code] == []


@pytest.mark.parametrize("format_", ["text", "markdown", "html"])
def test_hostile_names_are_shown_and_not_obeyed(format_: str) -> None:
    """No control, format or surrogate character reaches the reader's program."""
    names = HOSTILE
    report = report_with(
        *names, findings=tuple(finding(name, f"about {name}") for name in names)
    )

    text = RENDERERS[format_](report)

    assert re.findall(r"[\x00-\x09\x0b-\x1f\x7f\u2028\u202e\u2066\ud800]", text) == []
    text.encode()


def test_a_name_that_utf_8_has_not_costs_one_character() -> None:
    """A lone surrogate becomes a question mark; all else is in the JSON as it was."""
    report = decode(RENDERERS["json"](report_with(*HOSTILE)))

    expected = [name.replace("\ud800", "?") for name in HOSTILE]
    assert [row.unit for row in report.units] == expected


def test_without_colours_there_is_no_escape() -> None:
    """What a dumb terminal is sent holds none, not even a name's own."""
    report = report_with(*HOSTILE, findings=(finding(HOSTILE[2]),))

    assert "\x1b" not in terminal(report, 80, colours=False)


def test_colours_change_no_word() -> None:
    """Without its escapes, coloured output is the plain one."""
    report = report_with(*HOSTILE, findings=(finding(HOSTILE[1]),))
    coloured = terminal(report, 80, colours=True)

    plain = re.sub(r"\x1b\[[\d;]*m", "", coloured)
    assert plain == terminal(report, 80, colours=False)
    assert plain != coloured


class _Page(HTMLParser):
    """Collects what a browser would load, run or be told."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.policy: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        self.tags.add(tag)
        given = dict(attrs)
        self.loads += [n for n in given if n in ("src", "href", "srcset", "action")]
        self.handlers += [name for name in given if name.startswith("on")]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]


def test_the_page_runs_and_loads_nothing() -> None:
    """Hostile names are text; there is no script, link, handler or address."""
    report = report_with(
        *HOSTILE, findings=tuple(finding(name, name) for name in HOSTILE)
    )
    page = _Page()
    page.feed(RENDERERS["html"](report))

    assert page.policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert (page.loads, page.handlers) == ([], [])
    assert page.tags & {"script", "img", "link", "iframe", "object", "base"} == set()


def test_the_bars_of_the_budget_add_up() -> None:
    """The page's segments fill the bar, the terminal's its width."""
    report = report_with()
    budget = r'<div class="(?:hatched)?" title=[^>]*width:([\d.]+)%"></div>'
    widths = re.findall(budget, RENDERERS["html"](report))
    bar = next(
        line for line in RENDERERS["text"](report).splitlines() if "AAAA" in line
    )

    assert sum(map(float, widths)) == pytest.approx(100, abs=0.01)
    assert len(bar) == 2 + 96


def test_a_part_has_one_colour_in_every_run() -> None:
    """The page's budget is coloured by what a part is, not by where it stands."""
    report = report_with()
    few = replace(report, budget_ns_per_step={"optimizer": MS, "forward": MS})
    swatch = r'swatch[^"]*" style="background-color:(#\w+)"'

    budget = RENDERERS["html"](few).partition("Exposed time by cause")[0]
    assert re.findall(swatch, budget) == [
        PARTS["optimizer"],
        PARTS["forward"],
    ]


def test_markdown_keeps_a_table_row_on_one_line() -> None:
    """Pipes and line ends in a name do not break the table."""
    report = report_with(*HOSTILE)
    text = RENDERERS["markdown"](report)
    rows = [
        line for line in text.split("## Step budget")[0].splitlines() if "|" in line
    ]

    def cells(row: str) -> int:
        return len(re.findall(r"(?<!\\)\|", row)) - 1

    assert {cells(row) for row in rows if row.startswith("|")} == {9}


def test_only_the_costliest_units_fill_the_terminal() -> None:
    """100 units: the terminal shows 24 and says so, the page all."""
    names = [f"layers.{at}" for at in range(100)]
    report = report_with(*names)

    assert "and 76 units that cost less; --format html has them all" in _plain(
        RENDERERS["text"](report)
    )
    assert RENDERERS["html"](report).count('<td class="left" title="layers.') == 100


def test_json_is_the_report() -> None:
    """The JSON renderer loses nothing."""
    report = report_with(findings=(finding(),))

    assert decode(RENDERERS["json"](report)) == report


@pytest.mark.parametrize(
    ("say", "given", "expected"),
    [
        (ranges, [7, 1, 2, 3, 9, 3], "1-3, 7, 9"),
        (ranges, [], ""),
        (units, ["layers.0", "layers.1", "layers.3"], "layers.[0-1, 3]"),
        (units, ["norm, output", "<root>"], '"norm, output", <root>'),
        (units, ["h.0.mlp", "h.1.mlp", "h.1.attn"], "h.[0-1].mlp, h.1.attn"),
        (units, [f"u{c}" for c in "abcdefgh"], "ua, ub, uc, ud, ue, uf, and 2 more"),
        (visible, "caf\u00e9 \u6d4b", "caf\u00e9 \u6d4b"),
        (visible, "a\x1b[0m\u202e", "a\\x1b[0m\\u202e"),
    ],
)
def test_words(say: Callable[[object], str], given: object, expected: str) -> None:
    """Lists are short and unambiguous, hidden characters visible."""
    assert say(given) == expected


def test_a_long_name_keeps_its_end() -> None:
    """The end of an FQN tells siblings apart."""
    assert shorten("model.layers.17.mlp", 12) == "...rs.17.mlp"


BUDGET_ROW = re.compile(r"^.* ms +\S+ % .*$", re.MULTILINE)
TABLE_ROW = re.compile(r"^(\|| +\d+ ).*$", re.MULTILINE)
HEADED = re.compile(
    r"<style.*?</style>|<table.*?</table>|<ul class=\"legend.*?</ul>|<[^>]*>", re.DOTALL
)
"""What stands under a heading that says of what its shares are, and what is no text."""

SAYS_OF_WHAT = re.compile(r"% (of\b|is exposed)|goes to .*%")


@pytest.mark.parametrize("renderer", ["text", "markdown", "html"])
@pytest.mark.parametrize(
    "case",
    ["adapters-only", "checkpoint-often", "device-healthy", "padded-rows", "slow-rank"],
)
def test_a_share_says_of_what_it_is_one(case: str, renderer: str) -> None:
    """In every sentence; of a table or the budget its heading does."""
    said = RENDERERS[renderer](diagnose(open_run(TRACES / case)))
    assert re.search("mean step, and shares of it", said)
    text = HEADED.sub(" ", said) if renderer == "html" else said
    text = TABLE_ROW.sub("", BUDGET_ROW.sub("", text))
    sentences = re.split(r"\n\n|\n(?=[ |#-]* ?[A-Z])|; |(?<=\.)\s", text)
    shares = [" ".join(one.split()) for one in sentences if re.search(r"\d %", one)]

    assert shares
    assert [one for one in shares if not SAYS_OF_WHAT.search(one)] == []
