"""`import fsdpdoctor`: its names, what they cost, and the example in the docs."""

from __future__ import annotations

import ast
import html
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fsdpdoctor as fd
from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.report import decode

ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "traces" / "exposed-all-gather"
DOCS = ROOT / "docs" / "api.md"


@pytest.fixture(scope="module")
def report() -> fd.RunReport:
    """Of a recorded run with a finding."""
    return fd.diagnose(fd.open(RECORDED))


def examples() -> list[str]:
    """The Python in the docs."""
    return re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)


def in_a_new_process(code: str) -> str:
    """What it prints."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout


def test_all_is_what_can_be_imported() -> None:
    """By name, by star, and for a type checker; nothing else is offered."""
    code = "from fsdpdoctor import *; print(sorted(k for k in dir() if k[:2] != '__'))"
    imported = ast.literal_eval(in_a_new_process(code))
    public = {name for name in fd.__all__ if not name.startswith("__")}
    tree = ast.parse((ROOT / "fsdpdoctor" / "__init__.py").read_text())
    typed = {
        (alias.name, node.module)
        for branch in tree.body
        if isinstance(branch, ast.If)
        for node in branch.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    assert imported == sorted(public)
    assert dir(fd) == fd.__all__ == sorted(fd.__all__)
    assert typed == set(fd._HOME.items())
    assert public == set(fd._HOME)
    with pytest.raises(AttributeError, match="has no attribute 'opne'"):
        fd.opne  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    """Not torch, numpy, nor any other package; recording's names need no torch."""
    code = (
        "import sys; before = set(sys.modules); import fsdpdoctor\n"
        "new = {m.split('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names)))\n"
        "fsdpdoctor.record, fsdpdoctor.step, fsdpdoctor.open, fsdpdoctor.diagnose\n"
        "print('torch' in sys.modules)"
    )

    assert in_a_new_process(code) == "['fsdpdoctor']\nFalse\n"


def test_the_function_open_stays_one() -> None:
    """No module of the package takes its place when it is imported."""
    code = (
        "import fsdpdoctor, fsdpdoctor.api, fsdpdoctor.cli.analyze\n"
        "import fsdpdoctor.cli.run, fsdpdoctor.report, fsdpdoctor.recorder.session\n"
        "print([n for n in fsdpdoctor.__all__ if type(getattr(fsdpdoctor, n)) is "
        "type(fsdpdoctor)])"
    )

    assert in_a_new_process(code) == "[]\n"


def test_the_example_in_the_docs_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside a run that was recorded last."""
    (tmp_path / "fsdpdoctor-runs").mkdir()
    (tmp_path / "fsdpdoctor-runs" / "latest").symlink_to(RECORDED)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(examples()[0], names)
    said = capsys.readouterr().out

    assert said.startswith(str(names["report"]))
    assert "\nFD101 ('layers.0', 'layers.1'" in said
    assert "\nlayers.0 " in said


@pytest.mark.ranks
def test_the_recording_in_the_docs_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps that it says, ended by its own calls."""
    pytest.importorskip("torch", reason="records a run")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(examples()[1], names)
    folder = names["train"]([1.0, 2.0, 3.0, 4.0], lambda batch: None)

    (data,) = fd.open_run(str(folder)).load()
    assert [s.step for s in data.steps if s.complete] == [1, 2]


def test_the_docs_are_typed(tmp_path: Path) -> None:
    """As strictly as the code is."""
    mypy = pytest.importorskip("mypy.api", reason="mypy is of the extra [test]")
    files = []
    for number, example in enumerate(examples()):
        path = tmp_path / f"example_{number}.py"
        path.write_text(example)
        files.append(str(path))
    cache = f"--cache-dir={ROOT / '.mypy_cache'}"  # of the last check of the code
    config = f"--config-file={ROOT / 'pyproject.toml'}"

    said, errors, status = mypy.run([config, cache, *files])

    assert (status, errors) == (0, ""), said


def test_a_report_shows_itself(report: fd.RunReport) -> None:
    """In a terminal as text, in a notebook as a page that nothing leaves."""
    page = report._repr_html_()
    framed = re.fullmatch(r'<iframe sandbox srcdoc="([^"]*)" style="[^"]*">.*', page)

    assert repr(report) == str(report) == report.render("text")
    assert framed is not None
    assert html.unescape(framed[1]) == report.render("html")
    assert decode(report.render("json")) == report.value
    with pytest.raises(UsageError, match="'pdf' is no format; expected one of text"):
        report.render("pdf")


@pytest.mark.ranks
def test_processes_give_the_same_report(report: fd.RunReport) -> None:
    """Of a run of two ranks, to the last digit."""
    run = fd.open(ROOT / "traces" / "healthy-llama")

    in_processes, here = fd.diagnose(run, jobs=2), fd.diagnose(run)

    assert in_processes == here
    assert list(in_processes.steps) == list(here.steps)


def test_runs_are_opened_by_text_too(tmp_path: Path) -> None:
    """A str and a Path name the same; one pattern needs no list."""
    assert fd.open(str(RECORDED)) == fd.open_run(RECORDED)
    with pytest.raises(InputError, match=f"^{tmp_path}/none.json does not exist, and"):
        fd.import_run(f"{tmp_path}/none.json")


def test_rows_are_typed_and_a_table(report: fd.RunReport) -> None:
    """The rows that the report has, and the figures of its JSON, column by column."""
    na = pytest.importorskip("nanoarrow")
    written = json.loads(report.render("json"))
    for name in ("findings", "units", "collectives", "ranks"):
        table = getattr(report, name)
        rows = na.ArrayStream(table).read_all().to_pylist()
        assert tuple(table) == getattr(report.value, name)
        assert (len(table), table[0]) == (len(written[name]), next(iter(table)))
        assert [row.keys() for row in rows] == [rows[0].keys()] * len(written[name])
        for row, in_json in zip(rows, written[name], strict=True):
            assert {path.split(".")[0] for path in row} == in_json.keys()
            assert row == {path: at(path, in_json) for path in row}


TEXT = ("evidence", "advice", "places", "reshard_after_forward")


def at(path: str, row: Any) -> Any:
    """What a column of the table holds of a row of the JSON."""
    *above, name = path.split(".")
    for part in above:
        row = row and row[part]  # what is not there has no parts
    value = row and row[name]
    is_text = name in TEXT and value is not None
    return json.dumps(value) if is_text else value


@pytest.mark.parametrize(
    "read",
    ["polars.DataFrame(t)", "pandas.DataFrame.from_arrow(t)", "pyarrow.table(t)"],
)
def test_libraries_take_the_tables(report: fd.RunReport, read: str) -> None:
    """As they are: whole columns of numbers, not of objects."""
    name = read.split(".")[0]
    library = pytest.importorskip(name, reason="what reads Arrow is the user's own")
    table = eval(read, {name: library, "t": report.units})

    given = [unit.exposed_ns.forward for unit in report.units]
    column = table["exposed_ns.forward"]
    assert (column.to_pylist() if name == "pyarrow" else column.to_list()) == given
    assert len(table.columns) > 30
