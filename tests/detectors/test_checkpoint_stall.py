"""FD405, checkpoint-stall."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.checkpoint.filesystem import FileSystemReader

from fsdpdoctor.detectors.checkpoint_stall import SAVE_BEHIND, checkpoint_stall
from fsdpdoctor.finding import Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence, Within
from fsdpdoctor.testing import RECORDED, Call, draw, measured
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without
from tests.rig.changed import replace

PLAIN = "forward 0000000000"
SAVING = "forward 00000\ncheckpoint .....xxxxx"


def saving_once(picture: str = SAVING) -> RankData:
    """One of six steps saves."""
    data, saving = draw(PLAIN), draw(picture)
    return replace(data, steps=(*data.steps[:3], saving.steps[3], *data.steps[4:]))


def test_saving_takes_much_of_the_run() -> None:
    """5 of 60 ms, once."""
    finding = only(checkpoint_stall, measured(saving_once()))

    assert finding.severity == Severity.WARNING
    assert finding.summary == (
        "1 checkpoint save of 5.00 ms takes 8.3 % of the recorded time"
    )
    assert finding.cost_ns_per_step == round(5 * MS / 6)
    assert finding.places[0].step == 6
    assert "dcp.async_save" in codes(finding)[0]


def test_a_save_that_is_set_aside_costs_no_mean_step() -> None:
    """Eleven times the median: its share of the recorded time is said, and no cost."""
    finding = only(checkpoint_stall, measured(saving_once(SAVING + 100 * "x")))

    assert finding.summary == (
        "1 checkpoint save of 105 ms takes 65.6 % of the recorded time, in steps that "
        "are set aside: no mean step has one"
    )
    assert finding.cost_ns_per_step is None


def test_a_save_under_work_of_the_device_costs_nothing() -> None:
    """The host saves for 5 ms while the device computes on: nobody stands still."""
    picture = "forward 0000000000\ncheckpoint .....xxxxx"
    data, saving = (draw(text, CUDA) for text in ("forward 0000000000", picture))
    once = replace(data, steps=(*data.steps[:3], saving.steps[3], *data.steps[4:]))

    finding = only(checkpoint_stall, measured(once))

    assert finding.summary.endswith("takes 8.3 % of the recorded time")
    assert (finding.severity, finding.cost_ns_per_step) == (Severity.INFO, 0)


def test_a_checkpoint_of_several_parts_is_one() -> None:
    """Model and optimizer, 3 and 4 ms, and what is gathered for them: 1 ms before, and
    1 ms that is in the model's own save.
    """
    picture = """
        forward    00................
        other      ..0.1.............
        checkpoint ...xxx.xxxx.......
    """
    calls = tuple(
        Call(kind="all_gather", site="train.py:9", within=within)
        for within in (Within.CHECKPOINT, Within.CHECKPOINT)
    )
    evidence = (*RECORDED, Evidence.OTHER_COLLECTIVES)
    data, saving = (
        draw(text, evidence=evidence, calls=calls)
        for text in ("forward 0" + "." * 17, picture)
    )
    once = replace(data, steps=(*data.steps[:3], saving.steps[3], *data.steps[4:]))

    finding = only(checkpoint_stall, measured(once))

    assert finding.summary.startswith("1 checkpoint save of 8.00 ms takes")
    assert finding.cost_ns_per_step == 7 * MS // 6  # the budget's: no wait was seen
    place = finding.places[0]
    assert place.end_ns - place.start_ns == 9 * MS


def test_a_short_save_is_no_finding() -> None:
    """1 of 60 ms."""
    short = saving_once("forward 000000000\ncheckpoint .........x")

    assert found(checkpoint_stall, measured(short)) == []


def test_without_saves_being_watched_it_cannot_tell() -> None:
    """A trace does not name them; and there must be steps."""
    bare = draw(SAVING, evidence=without(RECORDED, Evidence.CHECKPOINT))

    assert not_judged(checkpoint_stall, measured(bare)).needs == (Evidence.CHECKPOINT,)
    empty = measured(draw(SAVING, steps=0))
    assert not_judged(checkpoint_stall, empty).needs == (Evidence.STEPS,)


@pytest.fixture
def alone() -> Iterator[None]:
    """A job of one rank."""
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_the_advice_saves_in_the_background(tmp_path: Path, alone: None) -> None:
    """Its code leaves a checkpoint that the future waits for: weights, and moments.
    The save communicates in a group of its own.
    """
    scope: dict[str, Any] = {}
    exec(SAVE_BEHIND, scope)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 2)).sum().backward()
    optimizer.step()

    scope["save_behind"](model, optimizer, tmp_path / "saved").result()

    assert scope["saving"] is not dist.group.WORLD
    saved = FileSystemReader(tmp_path / "saved").read_metadata().state_dict_metadata
    assert {"model.weight", "optimizer.state.weight.exp_avg"} <= {*saved}
