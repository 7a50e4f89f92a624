"""Which forwards only ask for shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fsdpdoctor.recorder.steps.shape_passes import ShapePasses

STAGES = "torch.distributed.pipelining.stage"


class Stage:
    """As torch's, as far as is asked."""

    def _forward_metadata_inference(self, forward: Callable[[], bool]) -> bool:
        return forward()

    def forward_one_chunk(self, forward: Callable[[], bool]) -> bool:
        """A micro-batch."""
        return forward()


def test_a_forward_and_the_backward_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the tree's next forward, which is a micro-batch's."""
    monkeypatch.setitem(sys.modules, STAGES, SimpleNamespace(Stage=Stage))
    shapes, stage = ShapePasses(), Stage()

    assert stage._forward_metadata_inference(lambda: shapes.forward(1))
    assert (shapes.backward(1), shapes.backward(2)) == (True, False)
    assert not stage.forward_one_chunk(lambda: shapes.forward(1))
    assert not shapes.backward(1)


def test_without_pipelines_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where their module was never imported."""
    monkeypatch.delitem(sys.modules, STAGES, raising=False)

    assert not Stage()._forward_metadata_inference(lambda: ShapePasses().forward(1))
