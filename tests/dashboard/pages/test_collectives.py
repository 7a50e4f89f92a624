"""The Collectives page: every kind that ran, FSDP2's or not."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor.quantities import MS
from fsdpdoctor.report.collective_times import SizeTimes
from fsdpdoctor.report.value import OtherCollectiveRow
from fsdpdoctor_dashboard.data.run_registry import Library
from fsdpdoctor_dashboard.pages.collectives import page
from fsdpdoctor_dashboard.pages.components import Context
from fsdpdoctor_dashboard.pages.pictures.collective_figures import box_name, size_times
from tests.dashboard.said import opened, pages_of
from tests.rig.changed import replace

TRACES = Path(__file__).parents[3] / "traces"

ALL_TO_ALL = OtherCollectiveRow(
    where="moe.py:3",
    kind="all_to_all",
    group="experts",
    count_per_step=4.0,
    bytes=9968,
    phase="forward",
    in_="script",
    ns_per_step=5 * MS,
    exposed_ns_per_step=4 * MS,
    called=None,
    ranks=(0,),
)


def test_what_fsdp2_did_not_issue_is_listed(library: Library) -> None:
    """All-to-alls of the script, with what compute waited for them."""
    run = library.wait("before")
    budget = {**run.report.budget_ns_per_step, "exposed_other_communication": 4 * MS}
    report = replace(
        run.report, other_collectives=(ALL_TO_ALL,), budget_ns_per_step=budget
    )
    context = Context(base="/", theme="light", runs=(replace(run, report=report),))
    found = str(page(context))

    assert "Outside FSDP2, compute waits 4.00 ms per step for them" in found
    assert "all-to-all" in found
    assert "9.73 KiB" in found


def test_each_size_has_its_own_box() -> None:
    """Not one histogram of 448 bytes and of megabytes: the quantiles as they are."""
    small = SizeTimes(
        kind="all_reduce",
        fsdp=True,
        bytes=448,
        count=8,
        ns=(1 * MS, 2 * MS, 3 * MS, 4 * MS, 5 * MS),
        longest_ns=9 * MS,
    )
    other = replace(small, kind="all_to_all", fsdp=False, bytes=1 << 20)
    figure = size_times([small, other], "light")
    boxes = figure.data

    assert [box.y[0] for box in boxes] == [
        "all-reduce 448 B",
        "all-to-all 1.00 MiB, outside FSDP2",
    ]
    assert (boxes[0].lowerfence[0], boxes[0].median[0], boxes[0].upperfence[0]) == (
        1,
        3,
        5,
    )
    # What a box is stands above: as the axis's title a telephone cuts it.
    assert figure.layout.xaxis.title.text == "ms"
    assert box_name(replace(small, bytes=None)) == "all-reduce size not known"


def test_groups_of_one_role_are_told_apart() -> None:
    """By their ranks; one that is alone by how many they are."""
    found = [
        one.words
        for one in pages_of(opened(TRACES / "healthy-hsdp"))
        if one.page == "collectives" and one.column == "group"
    ]
    assert set(found) == {
        *("shard, ranks 0-1", "shard, ranks 2-3"),
        *("replicate, ranks 0, 2", "replicate, ranks 1, 3"),
    }
    slow = pages_of(opened(TRACES / "exposed-all-gather"))
    assert "shard, 8 ranks" in [one.words for one in slow if one.column == "group"]
