"""What is set lies on top of the script's own settings, and gives way to them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fsdpdoctor.recorder.autotune.in_force import InForce, ScriptChanged
from fsdpdoctor.recorder.fsdp2.running_settings import Change, Place


def test_settings_follow_each_other() -> None:
    """What the next ones do not change is the script's again, to the very object."""
    own = ["a"]
    unit = SimpleNamespace(lists=own, buffers=1)
    first = [Change(Place(unit, "lists"), []), Change(Place(unit, "buffers"), 2)]
    second = [Change(Place(unit, "buffers"), 3)]
    force = InForce()

    force.use(first)
    assert (unit.lists, unit.buffers) == ([], 2)
    force.use(second)
    assert unit.lists is own
    assert unit.buffers == 3
    force.use(())
    assert unit.lists is own
    assert unit.buffers == 1


def test_what_the_script_sets_holds() -> None:
    """The rest is put back, and nothing is set that was to be."""
    unit = SimpleNamespace(lists=["a"], buffers=1)
    force = InForce()
    force.use([Change(Place(unit, "lists"), []), Change(Place(unit, "buffers"), 2)])
    unit.buffers = 7

    with pytest.raises(ScriptChanged, match="the script has set buffers itself"):
        force.use([Change(Place(unit, "lists"), ["b"])])

    assert (unit.lists, unit.buffers) == (["a"], 7)
    force.put_back()
    assert unit.buffers == 7
