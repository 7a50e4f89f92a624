"""Where a root's passes begin, and optimizers step: the only places where a running
model may be told something else.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.patching import ErrorBorder, Patches


class Listener(Protocol):
    """Who is told."""

    def pass_begins(self, root: Any) -> None:
        """A root's forward with gradients begins: nothing of it has run."""
        ...

    def no_grad_begins(self, state: Any) -> None:
        """A forward without gradients begins, of a root or of a part alone."""
        ...

    def optimizer_begins(self) -> None:
        """An optimizer is about to change parameters."""
        ...


class Passes:
    """Tells a listener; where that fails it is told once more, within a second border:
    what it missed other ranks have begun.
    """

    def __init__(
        self, listener: Listener, first: ErrorBorder, second: ErrorBorder
    ) -> None:
        self._listener = listener
        self._first = first
        self._second = second
        self._patches = Patches()
        self._handle: Any = None
        self._pid = os.getpid()

    def attach(self, names: internals.TorchSymbols) -> None:
        """See passes from here on."""
        # Every state's forward begins with this call.
        original = names.state_class._lazy_init
        self._patches.put(names.state_class, "_lazy_init", self._around(original))
        self._handle = register_optimizer_step_pre_hook(self._optimizer_begins)

    def detach(self) -> None:
        """See nothing more."""
        self._patches.undo()
        if self._handle is not None:
            self._handle.remove()
            self._handle = None

    def _around(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def lazy_init(state: Any) -> None:
            original(state)
            # Within another pass it is a unit of that, as it is in recomputation.
            if state._state_ctx.iter_forward_root is None and self._ours:
                self._tell(self._begins, state)

        return lazy_init

    def _tell(self, call: Callable[..., None], *args: Any) -> None:
        if self._second.failed:
            return
        try:
            call(*args)
        except Exception as error:
            self._first.fail(error)
            self._second.run(call, *args)

    @property
    def _ours(self) -> bool:
        return os.getpid() == self._pid  # a forked child is no rank

    def _begins(self, state: Any) -> None:
        if internals.in_backward():
            return
        if not torch.is_grad_enabled():
            self._listener.no_grad_begins(state)
        elif state._is_root:
            self._listener.pass_begins(state)

    def _optimizer_begins(self, optimizer: Any, *args: Any) -> None:
        if self._ours:
            self._tell(self._listener.optimizer_begins)
