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
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import HashStore  # type: ignore[attr-defined]

from fsdpdoctor.network import NetworkModel, Reach, Role
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


_world: World | None = None  # of the groups made from now on, set by `modelled_world`


class WireGroup(_ProcessGroup):  # type: ignore[misc]
    """A process group of the modelled job, as this one rank sees it."""

    def __init__(self, rank: int, ranks: Sequence[int], world: World) -> None:
        super().__init__(rank, len(ranks))
        self._rank = rank
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

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def group_desc(self) -> str:
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        # Object collectives and barriers then use CPU tensors: no device time.
        return [torch.device("cpu")]

    # Gathers.

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """This rank's part into every slot."""
        return self._run(
            Kind.ALL_GATHER,
            "all_gather_single",
            [output],
            opts,
            lambda: self._fill_slots(output, input),
        )

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Several gathers in one."""

        def fill() -> None:
            for output, input in zip(outputs, inputs, strict=True):
                self._fill_slots(output, input)

        return self._run(
            Kind.ALL_GATHER, "all_gather_single_coalesced", outputs, opts, fill
        )

    def allgather(
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """This rank's tensor in every place of each list."""

        def fill() -> None:
            for row, input in zip(outputs, inputs, strict=True):
                for output in row:
                    _copy(output, input)

        flat = [output for row in outputs for output in row]
        return self._run(Kind.ALL_GATHER, "allgather", flat, opts, fill)

    def allgather_coalesced(
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """As `allgather`, but `outputs` has a list for each rank."""

        def fill() -> None:
            for row in outputs:
                for output, input in zip(row, inputs, strict=True):
                    _copy(output, input)

        flat = [output for row in outputs for output in row]
        return self._run(Kind.ALL_GATHER, "allgather_coalesced", flat, opts, fill)

    def gather(
        self,
        outputs: list[list[torch.Tensor]],
        inputs: list[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """As `allgather`, where this rank is the root; else nothing to fill."""

        def fill() -> None:
            for row in outputs:
                for output in row:
                    _copy(output, inputs[0])

        flat = [output for row in outputs for output in row] or inputs
        return self._run(Kind.COLLECTIVE, "gather", flat, opts, fill)

    # Reductions.

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        """This rank's chunk, as every rank has it."""
        return self._run(
            Kind.REDUCE_SCATTER,
            "reduce_scatter_single",
            [input],
            opts,
            lambda: self._reduce_chunk(output, input, opts),
            result=[output],
        )

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """Several reduce-scatters in one."""

        def fill() -> None:
            for output, input in zip(outputs, inputs, strict=True):
                self._reduce_chunk(output, input, opts)

        return self._run(
            Kind.REDUCE_SCATTER,
            "reduce_scatter_single_coalesced",
            inputs,
            opts,
            fill,
            result=outputs,
        )

    def reduce_scatter(
        self,
        outputs: list[torch.Tensor],
        inputs: list[list[torch.Tensor]],
        opts: Any = None,
    ) -> dist.Work:
        """As `reduce_scatter_single`, of lists."""

        def fill() -> None:
            for output, row in zip(outputs, inputs, strict=True):
                _copy(output, row[self._rank])
                self._times_ranks(output, opts)

        flat = [input for row in inputs for input in row]
        return self._run(
            Kind.REDUCE_SCATTER, "reduce_scatter", flat, opts, fill, result=outputs
        )

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """N times this rank's value for a sum, the value itself otherwise."""

        def fill() -> None:
            for tensor in tensors:
                self._times_ranks(tensor, opts)

        return self._run(Kind.ALL_REDUCE, "allreduce", tensors, opts, fill)

    def allreduce_coalesced(
        self, tensors: list[torch.Tensor], opts: Any = None
    ) -> dist.Work:
        """As `allreduce`."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """As `allreduce`: the root may be this rank."""

        def fill() -> None:
            for tensor in tensors:
                self._times_ranks(tensor, opts)

        return self._run(Kind.COLLECTIVE, "reduce", tensors, opts, fill)

    # The rest.

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> dist.Work:
        """This rank's value: the root's is taken to be the same."""
        return self._run(Kind.COLLECTIVE, "broadcast", tensors, opts, _nothing)

    def scatter(
        self,
        outputs: list[torch.Tensor],
        inputs: list[list[torch.Tensor]],
        opts: Any = None,
    ) -> dist.Work:
        """This rank's part where it is the root, zeros where it cannot be known."""

        def fill() -> None:
            for i, output in enumerate(outputs):
                if inputs:
                    _copy(output, inputs[i][self._rank])
                else:
                    output.detach().zero_()

        return self._run(Kind.COLLECTIVE, "scatter", outputs, opts, fill)

    def alltoall(
        self,
        outputs: list[torch.Tensor],
        inputs: list[torch.Tensor],
        opts: Any = None,
    ) -> dist.Work:
        """What this rank would send itself, from everyone."""

        def fill() -> None:
            for output in outputs:
                _copy_repeating(output, inputs[self._rank])

        return self._run(Kind.COLLECTIVE, "alltoall", outputs, opts, fill)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list[int] | None = None,
        input_splits: list[int] | None = None,
        opts: Any = None,
    ) -> dist.Work:
        """This rank's own rows, repeated where more are expected."""
        return self._run(
            Kind.COLLECTIVE,
            "all_to_all_single",
            [output],
            opts,
            lambda: _copy_repeating(output, input),
        )

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> dist.Work:
        """A message of its size."""
        return self._run(Kind.COLLECTIVE, "send", tensors, None, _nothing)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> dist.Work:
        """Zeros: another rank's message cannot be known."""

        def fill() -> None:
            for tensor in tensors:
                tensor.detach().zero_()

        return self._run(Kind.COLLECTIVE, "recv", tensors, None, fill)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> dist.Work:
        """As `recv`."""
        return self.recv(tensors, 0, tag)

    def barrier(self, opts: Any = None) -> dist.Work:
        """One latency: everyone arrives together."""
        return self._run(Kind.COLLECTIVE, "barrier", [], opts, _nothing)

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

    # Values.

    def _fill_slots(self, output: torch.Tensor, input: torch.Tensor) -> None:
        if output.numel() == 0:
            return
        slots = output.detach().view(self.size(), -1)
        part = input.detach().reshape(1, -1)
        # FSDP2's input is a view of its own slot: a copy onto itself is refused.
        if slots[self._rank].data_ptr() != part.data_ptr():
            slots[self._rank].copy_(part[0])
        slots[: self._rank].copy_(part)
        slots[self._rank + 1 :].copy_(part)

    def _reduce_chunk(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any
    ) -> None:
        if output.numel() == 0:
            return
        chunks = input.detach().reshape(self.size(), -1)
        _copy(output, chunks[self._rank].view(output.shape))
        self._times_ranks(output, opts)

    def _times_ranks(self, tensor: torch.Tensor, opts: Any) -> None:
        if getattr(opts, "reduceOp", None) == dist.ReduceOp.SUM:
            tensor.detach().mul_(self.size())

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
            side = self._side_streams.get(device)
            if side is None:
                side = self._side_streams[device] = _cuda.Stream(device)
            side.wait_stream(stream)
            stream = side
        timed = self._modelled.log is not None
        with _cuda.stream(stream):
            if self._device_free is not None:
                stream.wait_event(self._device_free)
            start: torch.cuda.Event = _cuda.Event(enable_timing=timed)
            done: torch.cuda.Event = _cuda.Event(enable_timing=timed)
            start.record(stream)
            fill()
            _cuda._sleep(round(length_ns * cycles_per_ns(device)))
            done.record(stream)
        self._device_free = done
        transfer.device = (start, done) if timed else None
        return done


def _nothing() -> None:
    """What a collective fills that leaves its tensors as they are."""


def _copy(output: torch.Tensor, input: torch.Tensor) -> None:
    if output.data_ptr() != input.data_ptr():
        output.detach().copy_(input.detach().reshape(output.shape))


def _copy_repeating(output: torch.Tensor, input: torch.Tensor) -> None:
    flat, source = output.detach().view(-1), input.detach().reshape(-1)
    if source.numel() == 0:
        flat.zero_()
        return
    times = -(-flat.numel() // source.numel())
    flat.copy_(source.repeat(times)[: flat.numel()])


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


@contextmanager
def modelled_world(world: World, rank: int = 0) -> Iterator[None]:
    """torch.distributed as one rank of a modelled job; destroyed at the end."""
    with modelling(world):
        dist.init_process_group(
            BACKEND, store=HashStore(), rank=rank, world_size=world.size
        )
        try:
            yield
        finally:
            if dist.is_initialized():  # the script may have done it
                dist.destroy_process_group()
