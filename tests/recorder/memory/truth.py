"""Counts storages by itself, from the first tensor on: what the recorder has to say.

It shares nothing with the recorder: finalizers of storages, `resize_` replaced, and
FSDP2's own methods wrapped.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.utils._python_dispatch import TorchDispatchMode

_Mode: Any = TorchDispatchMode


class Truth(_Mode):  # type: ignore[misc]
    """All storages of one training."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.born_in: dict[int, tuple[str, str]] = {}
        self.total = 0
        self.forwards: list[str] = []
        self.backwards: list[str] = []
        self.peak: tuple[int, str, str] = (0, "", "")
        self.most: dict[tuple[str, str], int] = {}
        self.activations: dict[str, int] = {}
        self.unsharded: dict[str, int] = {}  # gathered now, by unit
        self.gathered_most = 0
        self.counting = False

    def where(self) -> tuple[str, str]:
        """The unit that runs, and its phase."""
        backward = torch._C._current_graph_task_id() != -1
        phase = "backward" if backward else "forward"
        if self.forwards:
            return self.forwards[-1], phase
        return (self.backwards[-1] if backward and self.backwards else ""), phase

    def note(self) -> None:
        """What is held now may be the most."""
        if not self.counting:
            return
        where = self.where()
        self.most[where] = max(self.most.get(where, 0), self.total)
        if self.total > self.peak[0]:
            self.peak = (self.total, *where)

    def sized(self, storage: Any) -> None:
        """A storage has this size now."""
        key, size = id(storage), storage.nbytes()
        if key not in self.sizes:
            self.sizes[key] = 0
            self.born_in[key] = self.where()
            weakref.finalize(storage, self.dies, key)
        self.total += size - self.sizes[key]
        self.sizes[key] = size
        self.note()

    def dies(self, key: int) -> None:
        """A storage is gone."""
        self.total -= self.sizes.pop(key)
        del self.born_in[key]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Its results' storages are there."""
        if any(t not in (torch.Tensor, torch.nn.Parameter) for t in types):
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is None:
            for one in _flat((result, args, kwargs)):
                if one.device.type == "cpu":
                    self.sized(one.untyped_storage())
        return result

    def begin(self) -> None:
        """The step to be counted begins with its forward."""
        self.peak, self.most, self.activations = (0, "", ""), {}, {}
        self.gathered_most = 0
        self.counting = True
        self.note()

    def answer(self) -> dict[str, Any]:
        """What the recorder has to say."""
        return {
            "peak": list(self.peak),
            "most": {f"{u} {p}": n for (u, p), n in self.most.items() if u},
            "activations": self.activations,
            "gathered_most": self.gathered_most,
        }


def _flat(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _flat(value)
    elif isinstance(values, dict):
        yield from _flat(tuple(values.values()))


@contextmanager
def counting() -> Iterator[Truth]:
    """A training inside is counted."""
    truth = Truth()
    truth.total = _there_already()
    resize: Callable[..., Any] = torch.UntypedStorage.resize_
    kept = {name: getattr(FSDPParamGroup, name) for name in _AROUND}

    def resized(storage: Any, size: int) -> Any:
        result = resize(storage, size)
        truth.sized(storage)
        return result

    storage_class: Any = torch.UntypedStorage
    storage_class.resize_ = resized
    for name, around in _AROUND.items():
        setattr(FSDPParamGroup, name, around(truth, kept[name]))
    try:
        with truth:
            yield truth
    finally:
        storage_class.resize_ = resize
        for name, original in kept.items():
            setattr(FSDPParamGroup, name, original)


_trees: list[Any] = []


def _there_already() -> int:
    """What nobody counts in: a mesh's ranks, of trainings before."""
    found = (o for o in gc.get_objects() if type(o) in (torch.Tensor, nn.Parameter))
    sizes = {id(s): s.nbytes() for s in (t.untyped_storage() for t in found)}
    return sum(sizes.values())


def _name(group: Any) -> str:
    if all(one is not group.comm_ctx for one in _trees):
        _trees.append(group.comm_ctx)
    tree = next(at for at, one in enumerate(_trees) if one is group.comm_ctx)
    name = str(group._module_fqn or "<root>")
    return f"{name} [tree={tree}]" if tree else name


def _pre_forward(truth: Truth, original: Any) -> Any:
    def pre_forward(group: Any, *args: Any) -> Any:
        truth.forwards.append(_name(group))
        truth.note()
        return original(group, *args)

    return pre_forward


def _post_forward(truth: Truth, original: Any) -> Any:
    def post_forward(group: Any, *args: Any) -> Any:
        name = _name(group)
        if torch._C._current_graph_task_id() == -1:
            own = [
                truth.sizes[key]
                for key, born in truth.born_in.items()
                if born == (name, "forward") and key not in _not_activations(group)
            ]
            truth.activations[name] = max(truth.activations.get(name, 0), sum(own))
        result = original(group, *args)
        truth.forwards.remove(name)
        truth.note()
        return result

    return post_forward


def _not_activations(group: Any) -> set[int]:
    """Storages of gathered parameters and of gathers, of all units in the tree."""
    found: set[int] = set()
    state = group.comm_ctx.all_gather_state
    results = [] if state is None else [state.all_gather_result]
    for one in _groups(group):
        results += [one._all_gather_result] if one._all_gather_result else []
        for param in one.fsdp_params:
            found |= {id(t.untyped_storage()) for t in param.all_gather_outputs}
            shard = getattr(param, "_sharded_post_forward_param_data", None)
            found |= set() if shard is None else {id(shard.untyped_storage())}
    return found | {
        id(r.all_gather_output.untyped_storage())
        for r in results
        if r.all_gather_output is not None
    }


_every_group: list[Any] = []


def forget() -> None:
    """Another training comes."""
    _every_group.clear()
    _trees.clear()


def _groups(group: Any) -> list[Any]:
    if all(one is not group for one in _every_group):
        _every_group.append(group)
    return _every_group


def _pre_backward(truth: Truth, original: Any) -> Any:
    def pre_backward(group: Any, *args: Any) -> Any:
        if _name(group) not in truth.backwards:
            truth.backwards.append(_name(group))
        truth.note()
        return original(group, *args)

    return pre_backward


def _post_backward(truth: Truth, original: Any) -> Any:
    def post_backward(group: Any, *args: Any) -> Any:
        result = original(group, *args)
        truth.backwards = [n for n in truth.backwards if n != _name(group)]
        truth.note()
        return result

    return post_backward


def _wait_for_unshard(truth: Truth, original: Any) -> Any:
    def wait_for_unshard(group: Any) -> Any:
        _groups(group)
        result = original(group)
        _gathered_now(truth, group)
        return result

    return wait_for_unshard


def _reshard(truth: Truth, original: Any) -> Any:
    def reshard(group: Any) -> Any:
        result = original(group)
        _gathered_now(truth, group)
        return result

    return reshard


def _gathered_now(truth: Truth, group: Any) -> None:
    truth.unsharded[_name(group)] = sum(
        t.untyped_storage().nbytes()
        for param in group.fsdp_params
        for t in param.all_gather_outputs
    )
    truth.gathered_most = max(truth.gathered_most, sum(truth.unsharded.values()))


_AROUND: dict[str, Callable[[Truth, Any], Any]] = {
    "pre_forward": _pre_forward,
    "post_forward": _post_forward,
    "pre_backward": _pre_backward,
    "post_backward": _post_backward,
    "wait_for_unshard": _wait_for_unshard,
    "reshard": _reshard,
}
