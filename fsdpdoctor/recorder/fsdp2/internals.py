"""Every touch of torch's private FSDP2 names.

[Note: FSDP2's private names] Names are probed, never versions. A name that is
missing drops its signal with one warning: `signals` has which needs what. Seen in
torch 2.6 to 2.15 unless said otherwise:

    _fsdp_param_group: FSDPParamGroup, foreach_all_gather,
        foreach_all_gather_copy_out, foreach_reduce
    FSDPParamGroup: unshard, wait_for_unshard, reshard, pre_forward,
        post_forward, pre_backward, post_backward, finalize_backward,
        _wait_for_post_backward, _prefetch_unshard, _to_sharded,
        _to_sharded_post_forward; fsdp_params, modules,
        mesh_info, post_forward_mesh_info, offload_policy, comm_ctx, device,
        _training_state, _sharded_state, _all_gather_result,
        _post_reduce_event, _module_fqn, _is_hsdp, _reduce_dtype,
        reduce_grads, all_reduce_grads, reshard_after_backward,
        unshard_async_op, unshard_in_backward
    FSDPParamGroup (newer): reduce_scatter_max_input_buffers,
        _param_group_index, _num_param_groups
    FSDPParamGroup: mp_policy (to 2.14); FSDPParam: mp_policy (2.15)
    FSDPState: _lazy_init, _root_pre_forward, _register_pre_backward_hook,
        _register_root_post_backward_final_callback,
        _root_post_backward_final_callback, _cast_forward_inputs; _state_ctx,
        _comm_ctx, _modules, _is_root, _training_state,
        _states_to_forward_prefetch, _states_to_backward_prefetch
    FSDPState: _fsdp_param_group (2.6), _fsdp_param_groups (2.13)
    FSDPStateContext: all_states, iter_forward_root,
        post_backward_final_callback_queued
    FSDPCommContext: reduce_scatter_state (2.6), reduce_scatter_states (2.13),
        _last_post_reduce_events (2.13)
    _fully_shard: FSDPModule, _get_modules_and_states
    AllGatherResult: all_gather_output, all_gather_event, all_gather_work
    FSDPParam: sharded_param, _unsharded_param, all_gather_outputs,
        orig_dtype, param_dtype, _param_fqn, _orig_size,
        sharded_size, padded_sharded_param_size, fsdp_placement,
        _sharded_param_data, offload_to_cpu, pin_memory
    AllGather, ReduceScatter (2.13): the collective as an argument of
        foreach_all_gather and foreach_reduce; without them the collectives are
        bracketed where `_fsdp_collectives` looks them up, in its `dist`
"""

from __future__ import annotations

import importlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from fsdpdoctor.recorder.fsdp2.signals import hooks_of, lacking
from fsdpdoctor.recorder.fsdp2.signatures import PACKAGE, installed
from fsdpdoctor.recorder.patching import StandIn, unasked, unseen

NO_FSDP2 = (
    "this torch has no FSDP2 (torch.distributed.fsdp.fully_shard), or one that is not "
    "known: steps and host events only"
)

_GATHERS = ("all_gather_single", "all_gather_into_tensor")
_SCATTERS = ("reduce_scatter_single", "reduce_scatter_tensor")


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"{PACKAGE}.{name}")
    except ImportError:
        return None


class TorchSymbols:
    """Where the installed torch keeps what the recorder wraps."""

    def __init__(self) -> None:
        self.param_group_module: Any = _module("_fsdp_param_group")
        self.collectives_module: Any = _module("_fsdp_collectives")
        self.fully_shard_module: Any = _module("_fully_shard")
        state_module = _module("_fsdp_state")
        self.group_class: Any = getattr(self.param_group_module, "FSDPParamGroup", None)
        self.state_class: Any = getattr(state_module, "FSDPState", None)
        self.module_class: Any = getattr(self.fully_shard_module, "FSDPModule", None)
        self.all_gather_class = getattr(self.collectives_module, "AllGather", None)
        self.reduce_scatter_class = getattr(
            self.collectives_module, "ReduceScatter", None
        )
        self.lacks = lacking(installed())
        self._left_out = hooks_of(self.lacks)

    @property
    def found(self) -> bool:
        """Whether this torch has FSDP2 at all, as we know it."""
        there = None not in (self.group_class, self.state_class, self.module_class)
        return there and not any(lack.signal.vital for lack in self.lacks)

    def may_wrap(self, owner: Any, name: str) -> bool:
        """Whether there is such a function, and all that its hook asks about."""
        full = f"{owner.__name__}.{name}" if isinstance(owner, type) else name
        return hasattr(owner, name) and full not in self._left_out

    def available(self) -> tuple[str, ...]:
        """The methods that advice may name."""
        if self.module_class is None:
            return ()
        names = [n for n in dir(self.module_class) if not n.startswith("_")]
        # Private, and the only way to overlap gathers on a CPU.
        if hasattr(self.module_class, "_set_unshard_async_op"):
            names.append("_set_unshard_async_op")
        return tuple(names)


_graph_task: Callable[[], int] = torch._C._current_graph_task_id


def freeing_methods(names: TorchSymbols) -> tuple[str, ...]:
    """The methods of FSDPParamGroup that free its unsharded parameters.

    `reshard` calls the inner two; so do state dicts and `reset_iter_state`.
    """
    inner = ("_to_sharded", "_to_sharded_post_forward")
    found = tuple(name for name in inner if hasattr(names.group_class, name))
    return found or ("reshard",)


def in_backward() -> bool:
    """Whether autograd is running a backward pass on this thread."""
    return _graph_task() != -1


def is_broken_off(state: Any) -> bool:
    """Of a root's state, outside backward: whether its last backward was broken off by
    an exception, and FSDP2 was not told. It then queues no final callback any more, and
    takes forwards for parts of that backward.
    """
    context = getattr(state, "_state_ctx", None)
    return bool(getattr(context, "post_backward_final_callback_queued", False))


def groups_of(state: Any) -> tuple[Any, ...]:
    """A state's parameter groups, none for a root whose children hold it all."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return tuple(several)
    one = getattr(state, "_fsdp_param_group", None)
    return () if one is None else (one,)


def training_state(group: Any) -> str:
    """FORWARD, PRE_BACKWARD, POST_BACKWARD or IDLE."""
    return str(group._training_state._name_)  # `name` is three times as slow


def gathers(group: Any) -> bool:
    """Whether its all-gather was issued, and not yet waited for."""
    return group._all_gather_result is not None


def is_unsharded(group: Any) -> bool:
    """Whether the unit's full parameters are there now."""
    return bool(group._sharded_state._name_ == "UNSHARDED")


def unsharded_bytes(group: Any) -> int:
    """What the gathered parameters of an unsharded group hold, padding included."""
    with unasked():
        return sum(
            t.numel() * t.itemsize
            for p in group.fsdp_params
            for t in p.all_gather_outputs
        )


def is_part(state: Any) -> bool:
    """Whether it is known to belong to another root's tree."""
    return getattr(state, "_is_root", None) is False


def can_reset(state: Any) -> bool:
    """Whether FSDP2 can be told to give an iteration up."""
    return hasattr(state, "_reset_iter_state")


def all_states(state: Any) -> tuple[Any, ...]:
    """The states of a state's tree, root first, in the order of the modules."""
    return tuple(state._state_ctx.all_states)


def reduce_scatter_states(group: Any) -> tuple[Any, ...]:
    """The reduce-scatters whose input buffers are still held, oldest first."""
    context = group.comm_ctx
    several = getattr(context, "reduce_scatter_states", None)
    if several is not None:
        return tuple(several)
    one = getattr(context, "reduce_scatter_state", None)
    return () if one is None else (one,)


def buffer_waits(group: Any) -> tuple[Any, ...]:
    """The reduce-scatters that this group's post-backward will wait for.

    The condition is FSDPParamGroup.post_backward's own.
    """
    states = reduce_scatter_states(group)
    last = getattr(group, "_num_param_groups", 1) - 1
    if getattr(group, "_param_group_index", 0) != last or not group.reduce_grads:
        return ()
    cap = getattr(group.comm_ctx, "reduce_scatter_max_input_buffers", 1)
    return states[: max(0, len(states) - cap + 1)]


def final_events(group: Any) -> tuple[Any, ...]:
    """The events that this group's finalize_backward waits for, in order."""
    shared = getattr(group.comm_ctx, "_last_post_reduce_events", None)
    if shared is not None:
        return tuple(event for event in shared.values() if event is not None)
    own = getattr(group, "_post_reduce_event", None)
    return () if own is None else (own,)


def replicates(group: Any) -> bool:
    """Whether its gradients are all-reduced, too: HSDP."""
    return getattr(group.mesh_info, "replicate_process_group", None) is not None


def mixed_precision(group: Any) -> tuple[Any, ...]:
    """The policies of a unit's parameters: one for all, or each its own."""
    own = getattr(group, "mp_policy", None)
    return (own,) if own is not None else tuple(p.mp_policy for p in group.fsdp_params)


def local_shard(fsdp_param: Any) -> torch.Tensor:
    """This rank's part of a parameter: the DTensor's own storage, not a view of it."""
    sharded = fsdp_param.sharded_param
    local: torch.Tensor = getattr(sharded, "_local_tensor", sharded)
    return local


def param_fqn(fsdp_param: Any) -> str | None:
    """A parameter's name, known once its root is initialised."""
    name: str | None = getattr(fsdp_param, "_param_fqn", None)
    return name


def shard_index(group: Any) -> int:
    """Which part of its unit's parameters this rank has; 0 of an unsharded unit."""
    return int(getattr(group.mesh_info, "shard_mesh_rank", 0))


def current_stream(group: Any) -> Any:
    """The stream that forward and backward run on."""
    return group.device_handle.current_stream()


class CollectiveProxy:
    """A stand-in for an AllGather or ReduceScatter object, for one call.

    It forwards everything; FSDP2 checks the type of the object it keeps, never
    that of the one it passes on.
    """

    def __init__(
        self,
        inner: Any,
        call: Callable[..., Any],
        on_allocate: Callable[[], None] | None = None,
    ) -> None:
        self._inner = inner
        self._call = call
        self._on_allocate = on_allocate

    @unseen
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._inner, *args, **kwargs)

    @unseen
    def allocate(self, *args: Any, **kwargs: Any) -> Any:
        """Tell where FSDP2 has got to, and allocate."""
        if self._on_allocate is not None:
            self._on_allocate()
        return self._inner.allocate(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class DistProxy(types.ModuleType, StandIn):
    """`torch.distributed` as `_fsdp_collectives` sees it, some calls bracketed.

    Everything is looked up in the real module at each use, and set there, so
    whoever replaces a function, in here or there, is heard as without us.
    """

    __slots__ = ("_fsdpdoctor_calls", "_fsdpdoctor_inside", "_fsdpdoctor_real")

    def __init__(self, real: Any, calls: dict[str, Callable[..., Any]]) -> None:
        super().__init__(getattr(real, "__name__", "torch.distributed"))
        own = object.__setattr__
        own(self, "_fsdpdoctor_real", real)
        own(self, "_fsdpdoctor_calls", calls)
        own(self, "_fsdpdoctor_inside", False)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        there: dict[str, Any] = vars(self._fsdpdoctor_real)
        return there

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("_fsdpdoctor", "fsdpdoctor_", "__class__", "__dict__")):
            return object.__getattribute__(self, name)
        value = getattr(self._fsdpdoctor_real, name)
        call = self._fsdpdoctor_calls.get(name)
        return value if call is None else _through(self, value, call)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._fsdpdoctor_real, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._fsdpdoctor_real, name)

    def __dir__(self) -> list[str]:
        return dir(self._fsdpdoctor_real)

    def fsdpdoctor_pass(self) -> None:
        """Bracket nothing from here on."""
        object.__setattr__(self, "_fsdpdoctor_calls", {})

    def fsdpdoctor_beneath(self) -> Any:
        """The real module, where this one brackets nothing."""
        return self if self._fsdpdoctor_calls else self._fsdpdoctor_real


def _through(
    proxy: DistProxy, function: Callable[..., Any], call: Callable[..., Any]
) -> Callable[..., Any]:
    """One function of the proxy, as it was when somebody asked for it.

    Who asks may put a function of their own in its place, which calls this one
    from inside the bracket; or may keep it until nothing is bracketed any more.
    """
    inside = "_fsdpdoctor_inside"

    @unseen
    def through(*args: Any, **kwargs: Any) -> Any:
        if proxy._fsdpdoctor_inside or not proxy._fsdpdoctor_calls:
            return function(*args, **kwargs)
        object.__setattr__(proxy, inside, True)
        try:
            return call(function, *args, **kwargs)
        finally:
            object.__setattr__(proxy, inside, False)

    return through


def dist_calls(
    names: TorchSymbols,
    gather: Callable[..., Any],
    scatter: Callable[..., Any],
    all_reduce: Callable[..., Any],
) -> dict[str, Callable[..., Any]]:
    """Which functions of `dist` to bracket: those no argument stands for."""
    calls = {"all_reduce": all_reduce}
    real = names.collectives_module.dist
    if names.all_gather_class is None:
        calls |= {name: gather for name in _GATHERS if hasattr(real, name)}
    if names.reduce_scatter_class is None:
        calls |= {name: scatter for name in _SCATTERS if hasattr(real, name)}
    return calls


class ArgumentSwap:
    """Replaces the one argument of a class in each call of one function.

    Where it stands is found once: the class's own check costs a microsecond for
    every argument of every call.
    """

    def __init__(self, kind: type | None) -> None:
        self._kind = kind
        self._at: int | None = None

    def __call__(
        self, args: tuple[Any, ...], make: Callable[[Any], Any]
    ) -> tuple[Any, ...]:
        """The arguments, with that one replaced if there is one."""
        at = self._at
        if at is None:
            at = self._at = self._find(args)
        if at < 0:
            return args
        return (*args[:at], make(args[at]), *args[at + 1 :])

    def _find(self, args: tuple[Any, ...]) -> int:
        if self._kind is None:
            return -1
        found = (i for i, a in enumerate(args) if isinstance(a, self._kind))
        return next(found, -1)


def argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], at: int, names: tuple[str, ...]
) -> Any:
    """An argument of a collective, which versions name and pass differently."""
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[at]


def streams_of(args: tuple[Any, ...]) -> Iterator[Any]:
    """The streams among a call's arguments, in order."""
    return (a for a in args if hasattr(a, "wait_stream"))
