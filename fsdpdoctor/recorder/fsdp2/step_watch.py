"""Where steps begin, for whoever needs only that.

A step ends, and the next begins, where a root's forward with gradients follows an
optimizer step: there every rank stands alike, with all parameters sharded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from fsdpdoctor.errors import UsageError
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.patching import Patches


class StepWatch:
    """Calls back where a root's forward with gradients begins."""

    def __init__(
        self,
        forward_begins: Callable[[Any, bool], None],
        plain_step_ended: Callable[[Any], None] | None = None,
    ) -> None:
        """`forward_begins` gets the root's state, and whether a step has ended;
        `plain_step_ended` an optimizer that has stepped where nothing is sharded by
        FSDP2 yet, so that no root's forward may ever begin.
        """
        self._forward_begins = forward_begins
        self._plain_step_ended = plain_step_ended
        self._sharded = False
        self._patches = Patches()
        self._handle: Any = None
        self.stepped = False
        """Whether an optimizer has stepped since the last of these forwards."""

    def attach(self) -> None:
        """See forwards and optimizers from here on. Raises UsageError without FSDP2."""
        names = internals.TorchSymbols()
        if not names.found:
            raise UsageError(
                f"torch {torch.__version__} has no FSDP2 "
                "(torch.distributed.fsdp.fully_shard), whose steps could be counted"
            )
        # Every state's forward begins with this call.
        original = names.state_class._lazy_init
        self._patches.put(names.state_class, "_lazy_init", self._in_front_of(original))
        if self._plain_step_ended is not None:
            made = names.state_class.__init__
            self._patches.put(names.state_class, "__init__", self._seeing(made))
        self._handle = register_optimizer_step_post_hook(self._optimizer_ended)

    def detach(self) -> None:
        """See nothing more."""
        self._patches.undo()
        if self._handle is not None:
            self._handle.remove()

    def _in_front_of(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def lazy_init(state: Any) -> None:
            original(state)
            if (
                state._is_root
                and torch.is_grad_enabled()
                and not internals.in_backward()
            ):
                stepped, self.stepped = self.stepped, False
                self._forward_begins(state, stepped)

        return lazy_init

    def _seeing(self, made: Callable[..., None]) -> Callable[..., None]:
        def __init__(state: Any, *args: Any, **kwargs: Any) -> None:
            self._sharded = True
            made(state, *args, **kwargs)

        return __init__

    def _optimizer_ended(self, optimizer: Any, *args: Any) -> None:
        self.stepped = True
        if self._plain_step_ended is not None and not self._sharded:
            self._plain_step_ended(optimizer)
