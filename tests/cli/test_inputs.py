"""What is shown while ranks are read, and what an option takes."""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from fsdpdoctor.cli import inputs
from fsdpdoctor.cli.inputs import measure_run
from fsdpdoctor.open_paths import ReadOptions
from fsdpdoctor.run import in_memory, open_run, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.testing import draw

PICTURE = """
    micro_batch         00000000
    all_gather          .0......
    wait                .0......
    forward             ..00....
    backward            ....000.
    optimizer           .......x
"""


def test_a_terminal_sees_ranks_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bar by bytes on stderr, which is gone at the end; the figures are the same.
    What is read at once shows none.
    """

    class Terminal(StringIO):
        """Somebody looks."""

        def isatty(self) -> bool:
            """At this one."""
            return True

    ranks = [draw(PICTURE), draw(PICTURE, rank=1)]
    header = RunHeader(run_id="a", source="recorded", world_size=2)
    save_run(in_memory(header, ranks), tmp_path / "run")
    run = open_run(tmp_path / "run")
    plain = measure_run(run, ReadOptions(jobs=1))
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    measure_run(run, ReadOptions(jobs=1))
    assert shown.getvalue() == ""

    monkeypatch.setattr(inputs, "WORTH_A_BAR", 1)
    monkeypatch.setenv("TERM", "xterm")
    measures = measure_run(run, ReadOptions(jobs=1))
    assert "reading 2 ranks" in shown.getvalue()
    assert measures.budget_ns_per_step() == plain.budget_ns_per_step()


def test_a_packed_file_counts_as_what_it_unpacks_to(tmp_path: Path) -> None:
    """So that a bar over both kinds moves evenly."""
    sizes = []
    for name in ("trace.json", "trace.json.gz"):
        path = tmp_path / name
        path.write_bytes(b"x" * 10)
        source: Any = SimpleNamespace(where=str(path))
        sizes.append(inputs._text_bytes(source))
    assert sizes == [10, 160]


def test_a_size_has_a_unit() -> None:
    """Or one line says what is expected."""
    assert inputs.byte_size("80GiB") == 80 << 30
    with pytest.raises(
        click.BadParameter, match="'many' is no size; expected for exam"
    ):
        inputs.byte_size("many")
