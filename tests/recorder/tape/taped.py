"""A tape of hooks in C, around functions of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from fsdpdoctor.recorder.tape import facts
from fsdpdoctor.recorder.tape.extension import Row, extension

STATES = ("idle", "forward", "pre", "post")
OWNER = object()


class Group:
    """What a hook looks at."""

    def __init__(self, **changed: Any) -> None:
        self._all_gather_result: Any = None
        self._sharded_state = "sharded"
        self._training_state = "idle"
        self.modules = ["one"]
        self.reduce_grads, self.all_reduce_grads = True, False
        self.reshard_after_backward = True
        self._fsdpdoctor_unit = SimpleNamespace(owner=OWNER, group=lambda: self)
        vars(self).update(changed)

    def method(self, *args: Any, **kwargs: Any) -> Any:
        """Say what it was given."""
        return self, args, kwargs

    def raises(self) -> None:
        """An error of theirs."""
        raise LookupError("theirs")


class Gather:
    """A collective that FSDP2 is given."""

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The collective itself."""
        return self.result

    def allocate(self, size: int) -> int:
        """Say what was asked for."""
        return size


def _size(tensor: Any) -> int:
    return int(tensor)


class Taped:
    """A tape, and what it asks."""

    def __init__(self, **given: Any) -> None:
        self.task = -1
        self.recording = SimpleNamespace(own_collective=False)
        self.compiler = {"_is_compiling_flag": False}
        self.by_param: dict[int, Any] = {}
        self.made: list[Any] = []
        made = extension()
        self.hook: Callable[..., Any] = made.Hook
        asked: dict[str, Any] = {
            "unit_of": self._unit_of,
            "units_of_params": self.by_param,
            "owner": OWNER,
            "indices": {"world": 3},
            "index_of": lambda group: 7,
            "graph_task": lambda: self.task,
            "states": STATES,
            "unsharded": "unsharded",
            "compiler": self.compiler,
            "recording": self.recording,
            "kept": lambda result: ("kept", result),
            "tensor": str,
            "modes": lambda: 0,
            "size_of": _size,
        }
        self.tape = made.Tape(**(asked | given))

    def _unit_of(self, group: Any) -> Any:
        self.made.append(group)
        group._fsdpdoctor_unit = SimpleNamespace(owner=OWNER, group=lambda: group)
        return group._fsdpdoctor_unit

    def around(self, original: Any, shape: int = facts.OF_GROUP, **more: Any) -> Any:
        """A hook, with code 8."""
        return self.hook(self.tape, original, 8, shape, **more)

    def rows(self) -> list[Row]:
        """Those that were written."""
        taken: list[Row] = self.tape.take()
        return taken
