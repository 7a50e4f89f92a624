"""What a short trial run needs: its end after some steps, and its result to the bit.

A step ends, and the next begins, where a root's forward with gradients follows an
optimizer step: there every rank stops alike, with all parameters sharded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

from fsdpdoctor.errors import UsageError
from fsdpdoctor.plan_file import bits_file
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.patching import Patches


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
        self._patches = Patches()
        self._handle: Any = None
        self._steps = 0
        self._stepped = False
        # Held to the end: a script's model is gone when its main() has returned.
        self._roots: list[Any] = []

    def attach(self) -> None:
        """See steps and models from here on. Raises UsageError without FSDP2."""
        names = internals.TorchSymbols()
        if not names.found:
            raise UsageError(
                f"torch {torch.__version__} has no FSDP2 "
                "(torch.distributed.fsdp.fully_shard), whose steps could be counted"
            )
        # Every state's forward begins with this call.
        original = names.state_class._lazy_init
        self._patches.put(names.state_class, "_lazy_init", self._in_front_of(original))
        self._handle = register_optimizer_step_post_hook(self._optimizer_ended)

    def detach(self) -> None:
        """See nothing more."""
        self._patches.undo()
        self._handle.remove()

    def script_ended(self) -> None:
        """The script has come to its own end."""
        self._write_bits()

    def _in_front_of(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def lazy_init(state: Any) -> None:
            original(state)
            if (
                state._is_root
                and torch.is_grad_enabled()
                and not internals.in_backward()
            ):
                self._forward_begins(state)

        return lazy_init

    def _forward_begins(self, root: Any) -> None:
        if not any(known is root for known in self._roots):
            self._roots.append(root)
        if not self._stepped:
            return
        self._stepped = False
        self._steps += 1
        if self._steps == self._stop_after:
            self._write_bits()
            self._leave()

    def _leave(self) -> None:
        """End the script, on every rank at once: nobody waits for the others."""
        if dist.is_initialized():
            dist.barrier()
        raise SystemExit(0)

    def _optimizer_ended(self, optimizer: Any, *args: Any) -> None:
        self._stepped = True

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
