"""Models without FSDP2: which kind they are, and their forwards and backwards.

FSDP1 and DDP are seen by their own forward. A plain model's outermost forward
needs torch's global module hooks, which cost every module a little; they are
there only until something better is seen.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.nn.modules import module as nn_module

from fsdpdoctor.recorder.brackets import bracketing
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.recorder.storage.recording import Recording


class PlainPasses(Protocol):
    """Who is told of forwards and backwards."""

    def root_forward_begins(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """An outermost forward starts."""
        ...

    def root_forward_ended(self) -> None:
        """It has ended."""
        ...

    def plain_backward_ended(self, error: BaseException | None) -> None:
        """`torch.autograd.backward` has returned."""
        ...


class WrapperWatch(Protocol):
    """Who describes the model."""

    def saw_wrapper(self, wrapper: str) -> None:
        """A forward of such a wrapper ran: "fsdp1", "ddp" or "none"."""
        ...


class PlainRoots:
    """Finds root forwards where there is no FSDP2."""

    def __init__(
        self, recording: Recording, passes: PlainPasses, watch: WrapperWatch
    ) -> None:
        self._rec = recording
        self._passes = passes
        self._watch = watch
        self._patches = Patches()
        self._handles: list[Any] = []
        self._depth = 0

    def attach(self) -> None:
        """Watch for forwards and backwards of any model."""
        guard = self._rec.guard
        self._handles = [
            nn_module.register_module_forward_pre_hook(self._enter),
            nn_module.register_module_forward_hook(self._leave, always_call=True),
        ]
        for wrapper, owner in _wrappers():
            begins = self._wrapper_begins(wrapper)
            around = bracketing(guard, begins, self._wrapper_ended)
            self._patches.wrap(owner, "forward", around)
        around = bracketing(guard, self._backward_begins, self._backward_ended)
        self._patches.wrap(torch.autograd, "backward", around)

    def detach(self) -> None:
        """Watch no more."""
        self._drop_global_hooks()
        self._patches.undo()

    def fsdp2_seen(self) -> None:
        """FSDP2's own hooks tell more; the global ones go."""
        self._drop_global_hooks()

    def _drop_global_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._depth = 0

    def _enter(self, module: Any, args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self._depth += 1
            if self._depth > 1 or torch._C._current_graph_task_id() != -1:
                return
            if hasattr(type(module), "_get_fsdp_state") or isinstance(
                module, _classes()
            ):
                self._drop_global_hooks()  # told apart by their own hooks
                return
            self._watch.saw_wrapper("none")
            self._passes.root_forward_begins(module, args, {})
        except Exception as error:
            self._rec.guard.fail(error)

    def _leave(self, module: Any, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        try:
            self._depth = max(0, self._depth - 1)
            if self._depth == 0 and torch._C._current_graph_task_id() == -1:
                self._passes.root_forward_ended()
        except Exception as error:
            self._rec.guard.fail(error)

    def _wrapper_begins(self, wrapper: str) -> Any:
        def begins(module: Any, *args: Any, **kwargs: Any) -> None:
            self._watch.saw_wrapper(wrapper)
            self._passes.root_forward_begins(module, args, kwargs)

        return begins

    def _wrapper_ended(self, token: Any, error: BaseException | None) -> None:
        self._passes.root_forward_ended()

    def _backward_begins(self, *args: Any, **kwargs: Any) -> None:
        return None

    def _backward_ended(self, token: Any, error: BaseException | None) -> None:
        self._passes.plain_backward_ended(error)


def _wrappers() -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("ddp", torch.nn.parallel.DistributedDataParallel)]
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel

        found.append(("fsdp1", FullyShardedDataParallel))
    return found


def _classes() -> tuple[type, ...]:
    return tuple(owner for _, owner in _wrappers())
