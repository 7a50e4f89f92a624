"""Sees each storage as it is made, and as it goes."""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import get_ident
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode,
)

from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.fsdp2.internals import in_backward
from fsdpdoctor.recorder.memory.flops import FlopCount
from fsdpdoctor.recorder.memory.live_storages import LiveStorages
from fsdpdoctor.recorder.memory.refusals import (
    FAST_PATH,
    changes_derivative,
    refusal,
)
from fsdpdoctor.recorder.patching import unasked, unseen

_Mode: Any = TorchDispatchMode  # its own methods have no types
_own: Any = torch._C._disabled_torch_dispatch_impl
_fake: Any = torch._C._TorchDispatchModeKey.FAKE
_infra_mode: Callable[[Any], Any] = torch._C._get_dispatch_mode
_function_modes: Callable[[], int] = torch._C._len_torch_function_stack
_storage: Callable[[torch.Tensor], Any] = torch.Tensor.untyped_storage
_strided = torch.strided


class Listener(Protocol):
    """Who is told why a mode sees nothing any more."""

    def mode_failed(self, error: Exception) -> None:
        """An error of ours."""
        ...

    def derivative_changes(self, operator: str) -> None:
        """An operator has run whose derivative would be another under a mode."""
        ...


class StorageSource(Protocol):
    """Who tells of storages."""

    @property
    def slows(self) -> bool:
        """Whether that takes time of the step's own."""
        ...

    @property
    def flops(self) -> FlopCount | None:
        """What is computed meanwhile; None: that is not seen."""
        ...

    def refusal(self, *, evaluated: bool) -> str | None:
        """Why it may not; `evaluated`: some attention is in evaluation mode."""
        ...

    def begin(self) -> None:
        """Tell from here on, on this thread."""
        ...

    def end(self) -> bool:
        """Tell no more; whether nothing is left behind that has to be taken off."""
        ...

    def look(self, tensor: torch.Tensor) -> int | None:
        """See a plain tensor's storage, and give its key; None: it is elsewhere."""
        ...

    def resized(self, storage: Any) -> None:
        """A storage may have another size now: no operator says so."""
        ...

    def settle(self) -> None:
        """Count what has gone."""
        ...


class _Watched(weakref.ref[Any]):
    """A storage, with its key."""

    __slots__ = ("key",)
    key: int


class StorageMode(_Mode):  # type: ignore[misc]
    """Storages of the host, seen by torch's dispatcher."""

    slows = True

    def __init__(self, live: LiveStorages, listener: Listener) -> None:
        super().__init__()
        self._live = live
        self._listener = listener
        self.flops = FlopCount()
        self._watched: dict[int, _Watched] = {}
        self._gone: deque[_Watched] = deque()  # filled wherever something is freed
        self._subclasses: dict[type, bool] = {}
        self._passing = False  # sees nothing any more
        self._entered = False
        self._thread = get_ident()

    def refusal(self, *, evaluated: bool) -> str | None:
        """Why it may not; `evaluated`: some attention is in evaluation mode."""
        return refusal() or (FAST_PATH if evaluated else None)

    def begin(self) -> None:
        """Tell from here on, on this thread."""
        self._thread, self._entered = get_ident(), True
        self.__enter__()

    def end(self) -> bool:
        """Tell no more. The mode goes off the stack only where it is on top, in its
        thread, and outside backward, which puts the stack back as it was.
        """
        self._passing = True
        self._watched.clear()
        if not self._entered:
            return True
        if in_backward() or get_ident() != self._thread:
            return False
        if _get_current_dispatch_mode() is not self:
            return False
        self._entered = False
        self.__exit__(None, None, None)
        return True

    def look(self, tensor: torch.Tensor) -> int | None:
        """See a plain tensor's storage, and give its key; None: it is elsewhere."""
        if not tensor.is_cpu or tensor.layout is not _strided:
            return None
        try:
            storage = _storage(tensor)
        except (RuntimeError, NotImplementedError) as error:
            let_through(error)
            return None  # nested, batched: it has none
        return self._look_at(storage)

    def resized(self, storage: Any) -> None:
        """A storage may have another size now: no operator says so."""
        if storage.device.type == "cpu":
            self._look_at(storage)

    def _look_at(self, storage: Any) -> int:
        if self._gone:
            self.settle()
        key, size = id(storage), storage.nbytes()
        known = self._live.size(key)
        if known is None:
            watched = _Watched(storage, self._gone.append)
            watched.key = key
            self._watched[key] = watched
        if known != size:
            self._live.saw(key, size)
        return key

    def settle(self) -> None:
        """Count what has gone."""
        while self._gone:
            self._forget(self._gone.popleft())

    def _forget(self, watched: _Watched) -> None:
        # Its id may be another's by now.
        if self._watched.get(watched.key) is watched:
            del self._watched[watched.key]
            self._live.gone(watched.key)

    @unseen
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """What torch returns."""
        if self._passing:
            return _called(func, args, kwargs)
        for one in types:
            if self._is_subclass(one):
                if issubclass(one, FakeTensor):
                    return _called(func, args, kwargs)
                return NotImplemented  # its own parts come here one by one
        result = _called(func, args, kwargs)
        changed = changes_derivative(func, args)
        if changed is not None:
            self._passing = True
            self._listener.derivative_changes(changed)
            return result
        try:
            if _infra_mode(_fake) is None:
                with unasked():
                    self._see(args)
                    if kwargs:
                        self._see(kwargs.values())
                    self._see((result,))
                    self.flops.saw(func, args, kwargs, result)
        except Exception as error:
            self._passing = True
            self._listener.mode_failed(error)
        return result

    def _see(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.Tensor):
                self.look(value)
            elif isinstance(value, list | tuple):
                self._see(value)

    def _is_subclass(self, kind: type) -> bool:
        found = self._subclasses.get(kind)
        if found is None:
            found = getattr(kind, "__torch_dispatch__", _own) is not _own
            self._subclasses[kind] = found
        return found


# Dynamo never sees it: what keeps it from looking costs as much as the rest.
_class: Any = StorageMode
_class.__torch_dispatch__ = inspect.unwrap(_class.__torch_dispatch__)


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    """As if nobody were between: a function mode of the script's has had its turn."""
    if not _function_modes():
        return func(*args, **(kwargs or {}))
    with unasked():
        return func(*args, **(kwargs or {}))


def plain_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """The tensors with memory of their own that a tensor is made of."""
    kind = type(tensor)
    if getattr(kind, "__torch_dispatch__", _own) is _own:
        yield tensor
    elif not issubclass(kind, FakeTensor) and hasattr(tensor, "__tensor_flatten__"):
        for name in tensor.__tensor_flatten__()[0]:
            part = getattr(tensor, name)
            if isinstance(part, torch.Tensor):  # beside it a mesh
                yield from plain_parts(part)
