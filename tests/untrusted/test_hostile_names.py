"""A record whose every word is hostile: what is made of it is text, and nothing else.

Each output is read with a parser of its kind: code by Python's, Markdown by the blocks
it has, pages by a browser's rules, traces and answers as JSON.
"""

from __future__ import annotations

import ast
import gzip
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.schema.string_table import StringTable

TRACES = Path(__file__).parents[2] / "traces"
CASES = (
    "exposed-all-gather",
    pytest.param("every-linear-a-unit", marks=pytest.mark.slow),
    pytest.param("nested-in-checkpoint", marks=pytest.mark.slow),
)
"""Runs with findings whose advice is code that names units."""

KINDS = {
    "code": 'x"); import os; os.abort(); ("',
    "quotes": "'''\"\"\"\\",
    "lines": "x\nimport os\r\n! all fine\x85\u2028y",
    "fence": "```\n<script>hacked()</script>\n# heading\n[x](javascript:hacked())",
    "html": "</script><script>hacked()</script><img src=x onerror=hacked()>\"'",
    "template": "{{7*7}}${7*7}{i}%s",
    "terminal": "\x1b[31mred\x1b]0;title\x07\x1b[2J\x9b31m",
    "unseen": "\u202egnp.exe\u2066\u2069\u200b\ufeff\x00",
    "rich": "[bold red]x[/bold red][link=http://e]y[/link]",
    "cell": "=cmd|' /C calc'!A0",
    "long": "layers." + "x" * 100_000,
}
KEPT = {
    *("schema_version", "source", "clock", "evidence", "kind", "device", "run_id"),
    *("dtype", "param_dtype", "reduce_dtype", "orig_dtype", "gather_dtype", "ended"),
    *("available", "role", "backend", "training_state", "offload"),
}
"""Words that the record chooses from a list; others are the training's."""

UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e\u2066-\u2069\ufeff]"
)


def with_words(value: Any, word: str, key: str = "") -> Any:
    """The same header, every word of the training's replaced; names stay apart."""
    if isinstance(value, dict):
        return {
            name: item if name in KEPT else with_words(item, word, name)
            for name, item in value.items()
        }
    if isinstance(value, list):
        if key == "units":
            # Two units of one name are one: each has its own, and the root stays it.
            return [
                with_words(unit, f"{word}{at}") | ({"fqn": "<root>"} if not at else {})
                for at, unit in enumerate(value)
            ]
        return [with_words(item, word, key) for item in value]
    return word if isinstance(value, str) and value != "<root>" else value


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """One of the kinds."""
    return str(request.param)


@pytest.fixture(scope="module", params=CASES)
def run(
    request: pytest.FixtureRequest, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A run of the gallery in other words."""
    folder = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(TRACES / request.param, folder)
    for file in folder.glob("*.json"):
        said = with_words(json.loads(file.read_text()), KINDS[kind])
        file.write_text(json.dumps(said))
    return folder


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Names of functions, files and lines lie in the stream: they are hostile, too."""
    whole = StringTable.id

    def named(self: StringTable, string: str) -> int:
        return whole(self, f"{KINDS[kind][:1000]}{string}")

    monkeypatch.setattr(StringTable, "id", named)


def said(*arguments: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(main, arguments)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert result.exit_code in (0, 1), result.output[-300:]
    return result.output


def is_harmless(code: str) -> bool:
    """Whether code parses, imports only torch's or typing's, and calls nothing else."""
    tree = ast.parse(code)
    imported = [
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
        )
    ]
    called = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    return "os" not in imported and called.isdisjoint(("os.abort", "hacked"))


def codes_in(value: Any) -> list[str]:
    """Every piece of code that an answer holds."""
    if isinstance(value, dict):
        own = [v for k, v in value.items() if k == "code" and isinstance(v, str)]
        return own + [c for v in value.values() for c in codes_in(v)]
    return [c for v in value for c in codes_in(v)] if isinstance(value, list) else []


def test_an_answer_is_json_whose_code_parses(run: Path, kind: str) -> None:
    """What is not code of Python's is a detector's code, like FD101."""
    text = said("analyze", "--no-cache", "--json", str(run))

    answer = json.loads(text)
    assert any(row["unit"].startswith(KINDS[kind][:500]) for row in answer["units"])
    codes = [c for c in codes_in(answer) if not re.fullmatch(r"FD\d+", c)]
    assert codes
    assert [code for code in codes if not is_harmless(code)] == []
    assert len(text) < 3_000_000


def test_a_terminal_is_told_nothing(run: Path) -> None:
    """No control or format character; no line that we did not begin."""
    for command in ("analyze", "whatif"):
        text = said(command, *(("--no-cache",) * (command == "analyze")), str(run))

        assert UNSEEN.findall(text) == []
        lines = text.splitlines()
        assert [x for x in lines if x.startswith(("import os", "! all", "#"))] == []
        assert len(text) < 300_000


def test_markdown_has_no_block_that_is_not_ours(run: Path) -> None:
    """Code in fences parses; nothing of a name begins a heading, tag or link."""
    markdown_it = pytest.importorskip("markdown_it", reason="a parser of Markdown")
    text = said("analyze", "--no-cache", "--format", "markdown", str(run))

    tokens = markdown_it.MarkdownIt("gfm-like", {"linkify": False}).parse(text)
    inner = [child for token in tokens for child in token.children or ()]
    code = [t.content for t in tokens if t.type == "fence" and t.info == "python"]

    assert UNSEEN.findall(text) == []
    assert [c for c in code if not is_harmless(c)] == []
    assert {t.type for t in (*tokens, *inner)}.isdisjoint(
        ("html_block", "html_inline", "image")
    )
    links = [t.attrGet("href") or "" for t in inner if t.type == "link_open"]
    assert [link for link in links if link.startswith(("javascript", "http://e"))] == []
    assert "heading" not in [
        tokens[at + 1].content
        for at, t in enumerate(tokens)
        if t.type == "heading_open"
    ]


class _Page(HTMLParser):
    """Elements, attributes that run or load, and scripts' words."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.in_script = False
        self.scripts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a browser would do."""
        self.bad += [f"{tag} {n}" for n, _ in attrs if n.startswith("on")]
        self.bad += [f"{tag}={v}" for n, v in attrs if n == "src" and v == "x"]
        self.in_script = tag == "script"
        if self.in_script:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        """A script's end."""
        self.in_script = self.in_script and tag != "script"

    def handle_data(self, data: str) -> None:
        """A script's words."""
        if self.in_script:
            self.scripts[-1] += data


def test_a_page_runs_only_its_own_scripts(run: Path, tmp_path: Path) -> None:
    """With a timeline and without one."""
    pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")
    for timeline in ("none", "full"):
        out = tmp_path / f"{timeline}.html"
        options = ("--format", "html", "--timeline", timeline, "--out", str(out))
        said("report", *options, str(run))
        page = _Page()
        page.feed(out.read_text(encoding="utf-8"))

        assert page.bad == []
        assert [s for s in page.scripts if s.lstrip().startswith("hacked")] == []


@pytest.mark.parametrize("tool", ["perfetto", "kineto"])
def test_a_trace_is_json(run: Path, tmp_path: Path, tool: str) -> None:
    """Whole, with events, and of a size that a viewer opens."""
    out = tmp_path / tool
    said("export", str(run), "--to", tool, "--out", str(out))

    for file in out.iterdir():
        content = file.read_bytes()
        whole = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        assert json.loads(whole)["traceEvents"]
        assert len(whole) < 100_000_000
