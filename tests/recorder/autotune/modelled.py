"""Jobs on a modelled wire that tune themselves, in virtual time and in one thread.

What a rank's thread does is done where a pass begins, and the search where the process
beside the training would have done it: what is tried, and what is kept, is then the
same on every machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fsdpdoctor.cli.processes.rank_in_place import ranking_of, write_ranking
from fsdpdoctor.plan_file import settings_of
from fsdpdoctor.recorder.autotune import autotuner, start
from fsdpdoctor.recorder.autotune.autotuner import Autotuner, Setup
from fsdpdoctor.recorder.autotune.in_force import InForce
from fsdpdoctor.recorder.autotune.job_store import job_store
from fsdpdoctor.recorder.autotune.ranking import Ranking
from fsdpdoctor.recorder.autotune.step_lengths import StepLengths
from fsdpdoctor.recorder.changes.apply_plan import units_in
from fsdpdoctor.recorder.fsdp2.running_settings import Change, changes_of

LOOKS = 4
"""Of the thread, at each pass: a step of a tenth of a second has ten."""

LOOK_EVERY = 4
"""Passes between two looks of the search for enough steps."""


class Looking(Autotuner):
    """A tuning without a thread."""

    now: Looking  # the one that was made last

    def __init__(self, setup: Setup) -> None:
        """All ranks are this one: it agrees with nobody else."""
        store = job_store("", alone=True)
        super().__init__(replace(setup, store=store, world_size=1))
        Looking.now = self
        self.search: Search | None = None

    def pass_begins(self, root: Any) -> None:
        """First what the thread would have done since the last one."""
        if self.search is not None and self._pass % LOOK_EVERY == 0:
            self.search.look()
        if self._root is not None:
            for _ in range(LOOKS):
                if not self._voter.over:
                    self._look()
        super().pass_begins(root)

    @property
    def over(self) -> bool:
        """Whether nothing more is tried, and what was kept is in force."""
        return self._voter.over

    @property
    def kept(self) -> list[str]:
        """What was kept, in its order."""
        tuning = None if self._conductor is None else self._conductor.tuning
        return [] if tuning is None else [k.candidate.summary for k in tuning.kept]

    @property
    def failed(self) -> bool:
        """Whether an error of ours was met."""
        return self._first.failed

    @property
    def gain_share(self) -> float:
        """Of all that was kept, as it was said."""
        tuning = None if self._conductor is None else self._conductor.tuning
        return 0.0 if tuning is None else tuning.gain_share

    @property
    def apply(self) -> dict[str, Any]:
        """What is in force, as a plan file has it."""
        tuning = None if self._conductor is None else self._conductor.tuning
        return dict(tuning.kept[-1].candidate.apply) if tuning and tuning.kept else {}


Search = Any
Rank = Callable[[Path], Ranking | None]
"""Makes a ranking of a run's record; None: not yet."""


@contextmanager
def one_thread_tuning(rank: Rank = ranking_of) -> Iterator[None]:
    """Inside, a recording that tunes does all in the training's thread."""

    class Beside:
        def __init__(self, module: str, folder: Path) -> None:
            self.folder = folder
            self.done = False
            Looking.now.search = self

        def look(self) -> None:
            if self.done:
                return
            found = rank(self.folder)
            if found is not None:
                write_ranking(self.folder, found)
                self.done = True

        def close(self) -> None:
            self.done = True

    patch = pytest.MonkeyPatch()
    patch.setattr(start, "Autotuner", Looking)
    patch.setattr(start, "Beside", Beside)
    patch.setattr(autotuner, "start_thread", lambda run: None)
    patch.setattr(autotuner, "END_WITHIN_S", 0.0)
    try:
        yield
    finally:
        patch.undo()


def changes_in(model: Any, applied: Sequence[dict[str, Any]]) -> list[list[Change]]:
    """What plans come to for a model that has run."""
    root = next(
        state
        for state in (module._get_fsdp_state() for module in _sharded(model))
        if state._is_root
    )
    states = units_in(root._modules[0])
    return [changes_of(settings_of(one), root, states) for one in applied]


def _sharded(model: Any) -> Iterator[Any]:
    return (m for m in model.modules() if hasattr(m, "_get_fsdp_state"))


def measured_in_place(
    step: Callable[[], None], changes: Sequence[list[Change]], *, on_device: bool
) -> list[int]:
    """A step's length under each of them. On a device a step that settles comes first:
    its allocator looks for other blocks. On the host there is nothing to settle, the
    second step under each is exactly as long as the first.
    """
    force, lengths = InForce(), StepLengths(on_device=on_device)
    lengths.known = deque()  # all of them
    hook = register_optimizer_step_pre_hook(lambda *_: force.optimizer_begins())
    each = 2 if on_device else 1
    for at, one in enumerate(changes):
        force.use(one)
        for number in range(each):
            lengths.begins(each * at + number)
            step()
    lengths.begins(each * len(changes))
    if on_device:
        torch.cuda.synchronize()
        lengths.begins(-1)  # has the last events read
    hook.remove()
    force.put_back()
    return [round(length.ns) for length in lengths.known][each - 1 :: each]
