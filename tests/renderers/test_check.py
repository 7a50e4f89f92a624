"""The check's first line, and its tree of units."""

from __future__ import annotations

import io

from rich.console import Console

from fsdpdoctor.changes.fsdp1_migration import Migration, migration
from fsdpdoctor.renderers.check import headline, show_check, tree
from fsdpdoctor.report import report_of
from fsdpdoctor.report.check import Check
from fsdpdoctor.report.value import Report
from tests.detectors.test_of_models import job
from tests.renderers.test_renderers import finding, report_with


def check(
    report: Report | None = None,
    ended: str | None = None,
    found: Migration | None = None,
) -> Check:
    """A check of train.py."""
    return Check(
        script="train.py",
        report=report,
        memory=None,
        ended=ended,
        migration=found,
        seconds=1.0,
    )


def with_findings(count: int) -> Report:
    """A report of so many equal findings."""
    return report_with(findings=tuple(finding() for _ in range(count)))


def test_the_first_line_says_what_was_found() -> None:
    """Nothing, one, or many of which six are named."""
    one = "FD101 exposed-all-gather"
    assert (
        headline(check(report_with()))
        == "train.py: nothing to change in what needs no timing"
    )
    assert headline(check(with_findings(1))) == (
        f"train.py: 1 finding that needs no timing: {one}"
    )
    assert headline(check(with_findings(8))) == (
        f"train.py: 8 findings that need no timing: {', '.join([one] * 6)} and 2 more"
    )


def test_a_script_without_steps_is_not_judged() -> None:
    """Its end is said in its place, and never that all is well."""
    ended = check(ended="it ended with status 1: KeyError: 'x'")
    assert headline(ended) == (
        "train.py was not judged: it ended with status 1: KeyError: 'x'"
    )


def test_equal_siblings_share_a_line_below_their_root() -> None:
    """Three layers of one kind are one line, one step in."""
    report = report_with("layers.0", "layers.1", "layers.2")
    assert list(tree(report.units)) == [
        (
            "  layers.[0-2]  3 x Block, 1.05 M parameters, reshard_after_forward=True"
            ", float32"
        )
    ]


def test_each_model_has_a_tree_of_its_own() -> None:
    """Under its name; units have theirs in it."""
    text = io.StringIO()
    show_check(check(report_of(job("Actor", "Critic"))), Console(file=text, width=99))
    what = "Block, 1.05 M parameters, reshard_after_forward=True, float32"

    assert text.getvalue().splitlines()[2:6] == [
        "Actor, trained:",
        f"  layers.0  {what}",
        "Critic, not run:",
        f"  layers.0  {what}",
    ]


def test_fsdp1_is_shown_line_by_line() -> None:
    """What each argument becomes, and the code in the place of the wrapping."""
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as F\n"
    found = migration(source + "m = F(m, limit_all_gathers=True)\n")
    output = io.StringIO()
    show_check(check(found=found), Console(file=output, width=200))
    lines = output.getvalue().splitlines()
    assert lines[0].startswith("train.py:2 shards its model with FSDP1: ")
    assert "  line 2: limit_all_gathers=True" in lines
    assert "    -> is always so, and costs nothing: no setting" in lines
    assert "  In the place of line 2:" in lines
