"""Process groups whose collectives move nothing and take the modelled time.

One process stands for all ranks: every other rank is taken to be a copy of this
one. So a gather returns this rank's part in every slot, a sum N times this rank's
value. Numbers are finite and plausible, and losses are meaningless.

A collective is done at a deadline: the communicator's previous one ended, plus
what `wire.Link.duration_ns` says. On CPU whoever waits sleeps until then, and a
collective lasts at least as long as writing its output takes the host; on CUDA a
kernel spins that long on the stream of the collective, after writing the output.

`ProcessGroup` is subclassed in Python, as torch's own threaded test backend does.
Seen to work in torch 2.13. Both names of a method that was renamed are defined
(`_allgather_base`, later `all_gather_single`, and so on), so that either version's
`torch.distributed` finds its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from fsdpdoctor.network import NetworkModel, Reach, Role
from fsdpdoctor.rehearsal.collective_values import (
    flat,
    gather_by_rank,
    gather_lists,
    gather_slots,
    gather_to_root,
    nothing,
    own_rows,
    own_to_all,
    reduce_chunks,
    reduce_in_place,
    reduce_lists,
    scatter_from_root,
    zeros,
)
from fsdpdoctor.rehearsal.modelled_work import Transfer, WireWork, cycles_per_ns
from fsdpdoctor.schema import Kind

BACKEND = "wire"
"""The name under which torch.distributed knows the backend."""

# The stubs type half of torch.cuda, and give ProcessGroup's methods the names and
# overloads of one version: an alias each, not an ignore on every line.
_cuda: Any = torch.cuda
_ProcessGroup: Any = dist.ProcessGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The job that is modelled, and what was seen of it."""

    wire: NetworkModel
    size: int
    shard_size: int  # ranks per replica: `size` without HSDP
    node_size: int  # ranks per node
    log: list[Transfer] | None = None  # None: not kept
    # On a modelled device, what puts a collective on its current stream, and says
    # when it starts and ends; None: a real one.
    virtual: Callable[[int, str], tuple[int, int]] | None = None

    def role(self, ranks: Sequence[int]) -> Role:
        """What a group of these ranks is, from the shape of the job."""
        first = ranks[0]
        if list(ranks) == list(range(first, first + self.shard_size)):
            return Role.SHARD if first % self.shard_size == 0 else Role.OTHER
        replicas = self.size // self.shard_size
        if replicas > 1 and list(ranks) == [
            first % self.shard_size + i * self.shard_size for i in range(replicas)
        ]:
            return Role.REPLICATE
        return Role.OTHER

    def reach(self, ranks: Sequence[int]) -> Reach:
        """Whether a group of these ranks leaves a node."""
        nodes = {rank // self.node_size for rank in ranks}
        return Reach.INTRA if len(nodes) == 1 else Reach.INTER


_world: World | None = None  # of the groups made from now on, set by `modelling`


Fill = Callable[[Any, Any, Any, Any], None]
"""A function of `collective_values`."""


def _of_two(name: str, kind: Kind, fill: Fill) -> Callable[..., dist.Work]:
    """A method that takes outputs and inputs: the larger side goes over the wire."""

    def method(self: WireGroup, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        result, given = flat(outputs), flat(inputs)
        payload = given if kind == Kind.REDUCE_SCATTER else result or given
        return self._run(
            kind,
            name,
            payload,
            opts,
            partial(fill, self, outputs, inputs, opts),
            result=result or given,
        )

    return method


def _in_place(name: str, kind: Kind, fill: Fill) -> Callable[..., dist.Work]:
    """A method that takes one list of tensors."""

    def method(self: WireGroup, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._run(
            kind, name, tensors, opts, partial(fill, self, tensors, tensors, opts)
        )

    return method


_SEND = _in_place("send", Kind.COLLECTIVE, nothing)
_RECV = _in_place("recv", Kind.COLLECTIVE, zeros)
_BARRIER = _in_place("barrier", Kind.COLLECTIVE, nothing)


_FUNCTIONAL = {
    "all_gather_into_tensor": "all_gather_single",
    "all_gather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "all_to_all_single": "alltoall",
}
_FUNCTIONAL_IN_PLACE = {
    "all_reduce": "allreduce",
    "all_reduce_": "allreduce",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_reduce_coalesced_": "allreduce_coalesced",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
}
FUNCTIONAL = frozenset({*_FUNCTIONAL, *_FUNCTIONAL_IN_PLACE})
"""Functional collectives, whose methods these two name."""


def _nothing_to_fill() -> None:
    """Values are there already."""


def fill_virtual(fill: Callable[[], None]) -> None:
    """Where tensors are shapes there is nothing to fill; a device may know better."""


class WireGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group of the modelled job, as this one rank sees it."""

    def __init__(self, rank: int, ranks: Sequence[int], world: World) -> None:
        super().__init__(rank, len(ranks))
        self._ranks = tuple(ranks)
        self._modelled = world
        self._role = world.role(ranks)
        self._reach = world.reach(ranks)
        self._seq = 0
        self._free_ns = 0  # when the communicator has ended what was issued so far
        self._device_free: torch.cuda.Event | None = None
        self._side_streams: dict[torch.device, torch.cuda.Stream] = {}
        self._name = ""
        self._desc = ""
        self._coalesced: list[WireWork] | None = None
        self._functional: str | None = None  # the one that is issued now

    # What torch.distributed asks a group about itself.

    def getBackendName(self) -> str:
        """The backend's name."""
        return BACKEND

    def setGroupName(self, name: str) -> None:
        """Called once, when torch.distributed registers the group."""
        self._name = name

    def getGroupName(self) -> str:
        """The name it is registered under."""
        return self._name

    def setGroupDesc(self, desc: str) -> None:
        """Called once, when torch.distributed registers the group.

        A mesh describes its groups by its dimensions, as in `mesh_dp_shard`: where
        that names a role, it knows better than the ranks do.
        """
        self._desc = desc
        named = [r for r in (Role.SHARD, Role.REPLICATE) if r in desc]
        if len(named) == 1:
            self._role = named[0]

    def getGroupDesc(self) -> str:
        """What the group is for, in the words of whoever made it."""
        return self._desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        # Object collectives and barriers then use CPU tensors: no device time.
        return [torch.device("cpu")]

    # Collectives. Their lists nest as torch.distributed hands them over.

    all_gather_single = _of_two("all_gather_single", Kind.ALL_GATHER, gather_slots)
    all_gather_single_coalesced = _of_two(
        "all_gather_single_coalesced", Kind.ALL_GATHER, gather_slots
    )
    allgather = _of_two("allgather", Kind.ALL_GATHER, gather_lists)
    allgather_coalesced = _of_two(
        "allgather_coalesced", Kind.ALL_GATHER, gather_by_rank
    )
    gather = _of_two("gather", Kind.COLLECTIVE, gather_to_root)
    reduce_scatter_single = _of_two(
        "reduce_scatter_single", Kind.REDUCE_SCATTER, reduce_chunks
    )
    reduce_scatter_single_coalesced = _of_two(
        "reduce_scatter_single_coalesced", Kind.REDUCE_SCATTER, reduce_chunks
    )
    reduce_scatter = _of_two("reduce_scatter", Kind.REDUCE_SCATTER, reduce_lists)
    scatter = _of_two("scatter", Kind.COLLECTIVE, scatter_from_root)
    alltoall = _of_two("alltoall", Kind.COLLECTIVE, own_to_all)
    allreduce = _in_place("allreduce", Kind.ALL_REDUCE, reduce_in_place)
    allreduce_coalesced = allreduce
    reduce = _in_place("reduce", Kind.COLLECTIVE, reduce_in_place)  # its root or not
    broadcast = _in_place("broadcast", Kind.COLLECTIVE, nothing)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
        opts: Any = None,
    ) -> dist.Work:
        """This rank's own rows, whatever the splits."""
        return self._run(
            Kind.COLLECTIVE,
            "all_to_all_single",
            [output],
            opts,
            partial(own_rows, self, output, input, opts),
        )

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> dist.Work:
        """A message of its size."""
        return _SEND(self, tensors)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> dist.Work:
        """Zeros: another rank's message cannot be known."""
        return _RECV(self, tensors)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> dist.Work:
        """As `recv`."""
        return _RECV(self, tensors)

    def barrier(self, opts: Any = None) -> dist.Work:
        """One latency: everyone arrives together."""
        return _BARRIER(self, [], opts)

    def monitored_barrier(
        self, timeout: Any = None, wait_all_ranks: Any = None
    ) -> None:
        """As `barrier`."""
        self.barrier().wait()

    def _start_coalescing(self, device: torch.device) -> None:
        self._coalesced = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        works, self._coalesced = self._coalesced, None
        # They run one after the other, so that the last is done last.
        return works[-1] if works else self.barrier()

    # The names that these methods had before torch 2.12, and C++ still calls.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # Time.

    def _run(
        self,
        kind: Kind,
        name: str,
        payload: list[torch.Tensor],
        opts: Any,
        fill: Callable[[], None],
        result: list[torch.Tensor] | None = None,
    ) -> WireWork:
        issue_ns = time.perf_counter_ns()
        if self._functional is not None:
            name, fill = self._functional, _nothing_to_fill
        size_bytes = sum(t.numel() * t.element_size() for t in payload)
        link = self._modelled.wire.link(self._role, self._reach, kind)
        length_ns = link.duration_ns(kind, size_bytes, self.size())
        start_ns = max(issue_ns, self._free_ns)
        self._free_ns = start_ns + length_ns
        transfer = Transfer(
            kind=kind,
            name=name,
            group=self._name,
            seq=self._seq,
            payload_bytes=size_bytes,
            issue_ns=issue_ns,
            start_ns=start_ns,
            end_ns=self._free_ns,
            blocking=not getattr(opts, "asyncOp", True),
        )
        self._seq += 1
        done = None
        with torch.no_grad():
            if payload and payload[0].is_cuda:
                done = self._spin(transfer, payload[0].device, length_ns, fill)
            else:
                fill()
        if self._modelled.log is not None:
            self._modelled.log.append(transfer)
        work = WireWork(transfer, payload if result is None else result, done)
        if self._coalesced is not None:
            self._coalesced.append(work)
        return work

    def fsdpdoctor_functional(
        self, name: str, outputs: list[torch.Tensor], inputs: list[torch.Tensor]
    ) -> WireWork:
        """A functional collective whose values others have made: it takes its time.

        By the method that it would call, so that whoever wraps that one sees it.
        """
        opts = SimpleNamespace(asyncOp=True)
        self._functional = name
        try:
            if name in _FUNCTIONAL_IN_PLACE:
                work = getattr(self, _FUNCTIONAL_IN_PLACE[name])(outputs, opts)
            else:
                work = getattr(self, _FUNCTIONAL[name])(outputs, inputs, opts)
        finally:
            self._functional = None
        return work  # type: ignore[no-any-return]

    def _spin(
        self,
        transfer: Transfer,
        device: torch.device,
        length_ns: int,
        fill: Callable[[], None],
    ) -> torch.cuda.Event:
        """Put the collective on a stream; the event that says it is done.

        As NCCL in torch: a blocking call runs on the current stream, one with a
        handle on a stream of the group, and a communicator's next collective
        starts when its previous one ended, on whatever stream that was.
        """
        stream = _cuda.current_stream(device)
        if not transfer.blocking:
            if device not in self._side_streams:
                self._side_streams[device] = _cuda.Stream(device)
            side = self._side_streams[device]
            side.wait_stream(stream)
            stream = side
        timed = self._modelled.log is not None
        with _cuda.stream(stream):
            if self._device_free is not None:
                stream.wait_event(self._device_free)
            start: torch.cuda.Event = _cuda.Event(enable_timing=timed)
            done: torch.cuda.Event = _cuda.Event(enable_timing=timed)
            start.record(stream)
            virtual = self._modelled.virtual
            if virtual is None:
                fill()
                _cuda._sleep(round(length_ns * cycles_per_ns(device)))
            else:
                transfer.start_ns, transfer.end_ns = virtual(length_ns, transfer.name)
                fill_virtual(fill)
            done.record(stream)
        self._device_free = done
        transfer.device = (start, done) if timed else None
        return done


def _create_group(options: Any, _backend_options: object) -> WireGroup:
    if _world is None:
        raise RuntimeError(
            "the backend 'wire' belongs to fsdpdoctor's rehearsals and cannot be "
            "asked for by a script"
        )
    ranks = options.global_ranks_in_group or range(options.group_size)
    return WireGroup(options.group_rank, list(ranks), _world)


def _register() -> None:
    if not hasattr(dist.Backend, BACKEND.upper()):
        dist.Backend.register_backend(
            BACKEND, _create_group, extended_api=True, devices=["cpu", "cuda"]
        )


@contextmanager
def modelling(world: World) -> Iterator[None]:
    """While it is open, groups of the backend `BACKEND` belong to this world."""
    global _world
    if _world is not None:
        raise RuntimeError("one modelled world at a time in a process")
    _register()
    _world = world
    try:
        yield
    finally:
        _world = None
