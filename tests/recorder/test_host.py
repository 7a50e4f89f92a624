"""What the host does beside FSDP2, however the script came by the functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint
from torch import nn
from torch.nn.utils import clip_grad_norm_

import fsdpdoctor
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import Kind
from tests.recorder.rehearsed import recorded, sharded

dcp: Any = torch.distributed.checkpoint  # its functions have no types
save = dcp.save


def trained(folder: Path, clip: Any) -> list[int]:
    """The clipping spans of two steps."""
    with recorded(folder):
        model = sharded()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 8)).backward()
            clip(list(model.parameters()))
            optimizer.step()
            optimizer.zero_grad()
    steps = open_run(folder).sources[0].load().steps
    return [int((step.spans.kind == Kind.CLIP).sum()) for step in steps]


def in_two_calls(params: Any) -> None:
    """As torchtitan does."""
    utils: Any = torch.nn.utils
    norm = utils.get_total_norm([p.grad for p in params])
    utils.clip_grads_with_norm_(params, 1.0, norm)


def test_sees_clipping_that_was_imported_by_name(tmp_path: Path) -> None:
    """One span per call; the two parts on their own make two."""
    before = clip_grad_norm_

    assert trained(tmp_path / "one", lambda params: clip_grad_norm_(params, 1.0)) == [
        1,
        1,
    ]
    assert trained(tmp_path / "two", in_two_calls) == [2, 2]
    assert torch.nn.utils.clip_grad_norm_ is before


@pytest.mark.filterwarnings("ignore")  # torch's own, of a save without a job
def test_sees_a_checkpoint_that_was_imported_by_name(tmp_path: Path) -> None:
    """Also where the decorator keeps the function that was imported."""
    model = nn.Linear(2, 2)
    with fsdpdoctor.record(tmp_path / "run", every=1):
        save(model.state_dict(), checkpoint_id=tmp_path / "a")
        dcp.save(model.state_dict(), checkpoint_id=tmp_path / "b")
        model(torch.ones(2, 2)).sum().backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    steps = open_run(tmp_path / "run").sources[0].load().steps

    saves = sum(int((s.spans.kind == Kind.CHECKPOINT_SAVE).sum()) for s in steps)
    assert saves == 2
