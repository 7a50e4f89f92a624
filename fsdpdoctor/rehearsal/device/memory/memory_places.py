"""What memory is for, and where the training was as it was taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fsdpdoctor.rehearsal.device.memory.storages import Ledger

_graph_task: Callable[[], int] = torch._C._current_graph_task_id

PARAMETERS = "sharded parameters and buffers"
GATHERED = "gathered parameters"
REDUCTION = "gradients in reduction"
ACTIVATIONS = "activations"
BACKWARD = "gradients and temporaries of backward"

_OF_HOOK = {
    "unshard": GATHERED,
    "wait_for_unshard": GATHERED,
    "post_backward": REDUCTION,
}


class MemoryPlaces:
    """Follows the hooks of FSDP2."""

    def __init__(self, ledger: Ledger) -> None:
        self._hooks: list[str] = []
        self._forwards: list[str] = []
        self._backwards: list[str] = []
        self._began = False  # some forward has
        ledger.bucket = self.bucket
        ledger.place = self.place

    def bucket(self) -> str:
        """What is allocated now will be."""
        if self._hooks:
            named = next((b for b in reversed(self._hooks) if b), "")
            if named:
                return named
        if _graph_task() != -1:
            return BACKWARD
        return ACTIVATIONS if self._began else PARAMETERS

    def place(self) -> str:
        """Where the training is: a unit and its pass, in words."""
        if _graph_task() != -1:
            if not self._backwards:
                return "backward, before its first unit"  # of the loss
            return f"{self._backwards[-1]}, backward"
        if self._forwards:
            return f"{self._forwards[-1]}, forward"
        return "forward" if self._began else "before the first step"

    @contextmanager
    def in_hook(self, name: str, group: Any) -> Iterator[None]:
        """A hook of FSDP2 runs."""
        unit = str(getattr(group, "_module_fqn", None) or "<root>")
        backward = _graph_task() != -1
        if name == "pre_forward":
            self._began = True
            if not backward:
                self._forwards.append(unit)
                self._backwards.clear()
        elif name == "pre_backward":
            self._backwards.append(unit)
        self._hooks.append(_OF_HOOK.get(name, ""))
        try:
            yield
        finally:
            self._hooks.pop()
            if name == "post_forward" and unit in self._forwards:
                self._forwards.remove(unit)
            elif name == "post_backward" and unit in self._backwards:
                self._backwards.remove(unit)
