"""What a short trial run needs: its end after some steps, and its result to the bit."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from fsdpdoctor.plan_file import bits_file
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.step_watch import StepWatch


@contextmanager
def on_trial(
    stop_after: int | None, bits_folder: Path | None, rank: int
) -> Iterator[Trial]:
    """End the script after so many steps; write a hash of its parameters."""
    trial = Trial(
        stop_after, None if bits_folder is None else bits_file(bits_folder, rank)
    )
    trial.attach()
    try:
        yield trial
    finally:
        trial.detach()


class Trial:
    """Counts steps, and remembers the models that ran."""

    def __init__(self, stop_after: int | None, bits: Path | None) -> None:
        self._stop_after = stop_after
        self._bits = bits
        self._watch = StepWatch(self._forward_begins, self._plain_step_ended)
        self._steps = 0
        self._plain_steps: Counter[int] = Counter()  # by an optimizer's id
        # Held to the end: a script's model is gone when its main() has returned.
        self._roots: list[Any] = []

    def attach(self) -> None:
        """See steps and models from here on. Raises UsageError without FSDP2."""
        self._watch.attach()

    def detach(self) -> None:
        """See nothing more."""
        self._watch.detach()

    def script_ended(self) -> None:
        """The script has come to its own end."""
        self._write_bits()

    def _forward_begins(self, root: Any, stepped: bool) -> None:
        if not any(known is root for known in self._roots):
            self._roots.append(root)
        if not stepped:
            return
        self._steps += 1
        if self._steps == self._stop_after:
            self._write_bits()
            self._leave()

    def _plain_step_ended(self, optimizer: Any) -> None:
        """A script that shards nothing has steps, too: it trained its last one."""
        self._plain_steps[id(optimizer)] += 1
        if self._plain_steps[id(optimizer)] == self._stop_after:
            self._leave()

    def _leave(self) -> None:
        """End the script, on every rank at once: nobody waits for the others."""
        if dist.is_initialized():
            dist.barrier()
        raise SystemExit(0)

    def _write_bits(self) -> None:
        if self._bits is None or not self._roots:
            return
        digest = hashlib.sha256()
        for root in self._roots:
            for name, data in sorted(_shards(root), key=lambda named: named[0]):
                digest.update(name.encode())
                digest.update(data.cpu().contiguous().view(torch.uint8).numpy().data)
        bits, self._bits = self._bits, None
        try:
            bits.write_text(digest.hexdigest() + "\n")
        except OSError as error:
            border.say(f"fsdpdoctor: no hash of the parameters is kept: {error}")


def _shards(root: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """This rank's part of every parameter, by name: grouping does not change it."""
    for state in internals.all_states(root):
        for group in internals.groups_of(state):
            for param in group.fsdp_params:
                local = param.sharded_param.detach().to_local()
                yield param._param_fqn or "", local.flatten()
