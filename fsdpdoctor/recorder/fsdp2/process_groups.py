"""Process groups, numbered as this rank first uses them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch.distributed as dist

from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.schema import UNKNOWN, GroupSpec


class Groups:
    """Gives each process group the number that spans and units hold."""

    def __init__(self) -> None:
        self.by_group: dict[Any, int] = {}
        self._specs: list[GroupSpec] = []

    @property
    def specs(self) -> tuple[GroupSpec, ...]:
        return tuple(self._specs)

    def index(self, group: Any, role: str | None = None) -> int:
        """A process group's number; the first role that is said of it stays."""
        if group is None:
            return UNKNOWN
        found = self.by_group.get(group)
        if found is None:
            found = self.by_group[group] = len(self._specs)
            self._specs.append(_spec(group))
        if role is not None and self._specs[found].role is None:
            self._specs[found] = replace(self._specs[found], role=role)
        return found


def _spec(group: Any) -> GroupSpec:
    try:
        ranks = tuple(dist.get_process_group_ranks(group))
    except (RuntimeError, KeyError, ValueError) as error:
        let_through(error)
        ranks = ()  # a group that torch itself does not list
    try:
        backend = str(dist.get_backend(group))
    except (RuntimeError, KeyError, ValueError) as error:
        let_through(error)
        backend = None
    return GroupSpec(
        name=str(getattr(group, "group_name", "") or f"group of {group.size()}"),
        ranks=ranks,
        size=int(group.size()),
        backend=backend,
    )
