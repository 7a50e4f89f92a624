"""What the host does beside FSDP2: optimizers, clipping, data loading, garbage
collection, checkpoints, and calls that make it wait for the device.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from types import FrameType
from typing import Any, Protocol

import torch

from fsdpdoctor.recorder import kinds, lanes, phases
from fsdpdoctor.recorder.border import let_through
from fsdpdoctor.recorder.brackets import bracket, bracketing
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.unit_registry import Units
from fsdpdoctor.recorder.host import reloaded_operators
from fsdpdoctor.recorder.host.collection_watch import CollectionWatch
from fsdpdoctor.recorder.host.dynamo_counters import (
    NOTHING_COMPILED,
    CompileCounts,
    compile_counts,
    graph_break_reasons,
    recompile_reasons,
)
from fsdpdoctor.recorder.host.optimizer_hooks import OptimizerHooks, OptimizerSteps
from fsdpdoctor.recorder.host.source_paths import LAUNCHER, TORCH, is_ours
from fsdpdoctor.recorder.patching import Function, Patches, Wrap
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.schema import (
    COUNTER_COMPILE_NS,
    COUNTER_GRAPH_BREAKS,
    COUNTER_PYTHON_OBJECTS,
    COUNTER_RECOMPILES,
    GRAPH_BREAK_REASON,
    RECOMPILE_REASON,
    UNKNOWN,
    Kind,
    Within,
)

_SYNCING_METHODS = (
    "item",
    "cpu",
    "tolist",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
)
_CLIPPING = ("clip_grad_norm_", "get_total_norm", "clip_grads_with_norm_")
"""The last two are what sharded models with other meshes use, each on its own."""


OBJECTS_EVERY = 4
"""Recorded steps between two counts of Python's objects: it walks through all of the
interpreter's memory, and what is asked of them is by how many they grow."""


class ModelWatch(Protocol):
    """Who describes the model and its optimizers."""

    def saw_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """One is about to step."""
        ...

    def saw_checkpoint(self, kind: str, function: Any) -> None:
        """Activations of a function are checkpointed."""
        ...

    def saw_sharded(self, modules: Any, ignored: Any) -> None:
        """`fully_shard` is called, and told to leave some parameters alone."""
        ...


def _compile_reasons() -> dict[str, int]:
    """How often dynamo gave each reason, under the counters' names."""
    broken = {GRAPH_BREAK_REASON + why: n for why, n in graph_break_reasons().items()}
    again = {RECOMPILE_REASON + why: n for why, n in recompile_reasons().items()}
    return {**broken, **again}


class HostHooks:
    """Everything that is seen without FSDP2."""

    def __init__(
        self, recording: Recording, steps: OptimizerSteps, model: ModelWatch
    ) -> None:
        self._rec = recording
        self._optimizers = OptimizerHooks(recording, steps, model.saw_optimizer)
        self._model = model
        self._patches = Patches()
        self._always = Patches()
        self._collections = CollectionWatch(recording)
        self._steps = 0  # counted
        self._clipping = False
        self._compiled: CompileCounts | None = None  # when reasons were last read
        self._before = compile_counts() or NOTHING_COMPILED
        self._reasons_before = _compile_reasons()
        self._pause = Within.SCRIPT  # a loader or checkpoint that is under way

    def attach(self) -> None:
        """See optimizers in every step."""
        self._optimizers.attach()

    def detach(self) -> None:
        """See nothing any more."""
        self.turn(False)
        self._always.undo()
        self._optimizers.detach()

    @property
    def lost(self) -> tuple[str, ...]:
        """What could not be seen to the end, in words."""
        return () if self._optimizers.lost is None else (self._optimizers.lost,)

    def turn(self, on: bool) -> None:
        """See the rest, in recorded steps only."""
        self._patches.undo()
        self._collections.turn(on)
        if not on:
            return
        self._see_input()
        self._see_clipping()
        self._see_checkpoints()
        self._see_recomputation()
        if self._rec.clock.of_device:
            self._see_synchronisation()

    def within(self) -> Within:
        """What is under way of what is seen here."""
        if self._clipping:
            return Within.CLIP
        if self._pause != Within.SCRIPT:
            return self._pause
        return Within.OPTIMIZER if self._optimizers.running else Within.SCRIPT

    def count(self) -> None:
        """Add the counters of a step that ends."""
        self._collections.check()
        if self._steps % OBJECTS_EVERY == 0:
            self._count(COUNTER_PYTHON_OBJECTS, sys.getallocatedblocks())
        self._steps += 1
        compiled = compile_counts()
        if compiled is not None:
            compiled = compiled.since(self._before)
            self._count(COUNTER_GRAPH_BREAKS, compiled.graph_breaks)
            self._count(COUNTER_RECOMPILES, compiled.recompiles)
            if compiled.compile_ns is not None:
                self._count(COUNTER_COMPILE_NS, compiled.compile_ns)
            if compiled != self._compiled:  # reasons take longer to read
                self._compiled = compiled
                self._count_reasons()

    def _count_reasons(self) -> None:
        for name, times in _compile_reasons().items():
            new = times - self._reasons_before.get(name, 0)
            if new > 0:
                self._count(name, new)

    def _count(self, name: str, value: int) -> None:
        rec = self._rec
        rec.counters.add(rec.names.id(name), perf_counter_ns(), value)

    def sharding(self, names: internals.TorchSymbols) -> None:
        """See what `fully_shard` is called on, and what it is told to leave alone."""
        if hasattr(reloaded_operators.LIBRARY, reloaded_operators.FORGETS):
            self._always.wrap(
                reloaded_operators.LIBRARY,
                reloaded_operators.FORGETS,
                reloaded_operators.by_right_name,
            )
        name = "_get_modules_and_states"
        find = getattr(names.fully_shard_module, name, None)
        if find is None:
            return

        def begins(module: Any, device: Any, ignored: Any = None, *args: Any) -> None:
            self._model.saw_sharded(module, ignored)

        bracketed = bracketing(self._rec.guard, begins, _nothing)
        self._always.wrap(names.fully_shard_module, name, bracketed)

    def manual_unshard(self, units: Units) -> dict[str, Wrap]:
        """Tells FSDPModule.unshard, the user's own call, from FSDP2's."""
        rec = self._rec

        def begins(*args: Any, **kwargs: Any) -> None:
            rec.catch_up()
            units.manual = True

        def ended(token: Any, error: BaseException | None) -> None:
            rec.catch_up()
            units.manual = False

        return {"unshard": bracketing(self._rec.guard, begins, ended)}

    # Spans around functions of torch

    def _see(
        self, owner: Any, name: str, add: Callable[[int, BaseException | None], None]
    ) -> None:
        def begins(*args: Any, **kwargs: Any) -> int:
            return perf_counter_ns()

        if hasattr(owner, name):
            self._patches.wrap(owner, name, bracketing(self._rec.guard, begins, add))

    def _see_input(self) -> None:
        from torch.utils.data import dataloader

        def begins(loader: Any, *args: Any, **kwargs: Any) -> tuple[int, int]:
            self._pause = Within.LOADER
            workers = getattr(loader, "_num_workers", None)
            known = workers if type(workers) is int else UNKNOWN
            return perf_counter_ns(), known

        def ended(token: tuple[int, int], error: BaseException | None) -> None:
            self._pause = Within.SCRIPT
            start_ns, workers = token
            self._rec.host_span(kinds.INPUT, start_ns, value=workers)

        owner: Any = dataloader._BaseDataLoaderIter
        loaded = bracket(owner.__next__, self._rec.guard, begins, ended)
        self._patches.put(owner, "__next__", loaded)

    def _see_clipping(self) -> None:
        rec = self._rec

        def begins(*args: Any, **kwargs: Any) -> int | None:
            if self._clipping:
                return None  # the first of these calls the other two
            self._clipping = True
            return rec.tick()

        def ended(start: int | None, error: BaseException | None) -> None:
            if start is None:
                return
            self._clipping = False
            rec.spans.add(
                kinds.CLIP,
                lanes.COMPUTE,
                phases.OPTIMIZER,
                0,
                rec.micro_batch,
                UNKNOWN,
                start,
                rec.tick(),
            )

        for name in _CLIPPING:
            if hasattr(torch.nn.utils, name):
                self._patches.put_inside(
                    torch.nn.utils,
                    name,
                    lambda inner: bracket(inner, rec.guard, begins, ended),
                )

    def _see_checkpoints(self) -> None:
        if not torch.distributed.is_available():
            return
        from torch.distributed import checkpoint

        training = threading.get_ident()

        def begins(*args: Any, **kwargs: Any) -> int | None:
            # What `async_save` saves in a thread of its own holds nobody up.
            if threading.get_ident() != training:
                return None
            self._pause = Within.CHECKPOINT
            return perf_counter_ns()

        for name, kind in (
            ("save", kinds.CHECKPOINT_SAVE),
            ("async_save", kinds.CHECKPOINT_SAVE),
            ("load", kinds.CHECKPOINT_LOAD),
        ):

            def wrap(inner: Function, kind: Kind = kind) -> Function:
                def ended(start_ns: int | None, error: BaseException | None) -> None:
                    if start_ns is not None:
                        self._pause = Within.SCRIPT
                        self._rec.host_span(kind, start_ns)

                return bracket(inner, self._rec.guard, begins, ended)

            if hasattr(checkpoint, name):
                self._patches.put_inside(checkpoint, name, wrap)

    def _see_recomputation(self) -> None:
        from torch.utils import checkpoint

        seen, guard = self._model.saw_checkpoint, self._rec.guard
        name = "_checkpoint_without_reentrant_generator"  # torch 2.1 and newer
        generator = getattr(checkpoint, name, None)
        if generator is not None:

            def begins(function: Any, *args: Any, **kwargs: Any) -> None:
                seen("non_reentrant", function)

            self._patches.wrap(checkpoint, name, bracketing(guard, begins, _nothing))

        def runs(context: Any, function: Any, *args: Any, **kwargs: Any) -> None:
            seen("reentrant", function)

        owner = checkpoint.CheckpointFunction
        self._patches.wrap(owner, "forward", bracketing(guard, runs, _nothing))

    def _see_synchronisation(self) -> None:
        for name in _SYNCING_METHODS:
            self._patches.wrap(torch.Tensor, name, self._syncing_method)

        def add(start_ns: int, error: BaseException | None) -> None:
            self._synced(start_ns)

        self._see(torch.cuda, "synchronize", add)
        self._see(torch.cuda.Event, "synchronize", add)
        self._see(torch.cuda.Stream, "synchronize", add)

    def _syncing_method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        guard = self._rec.guard

        @functools.wraps(method)
        def syncing(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if not tensor.is_cuda:
                return method(tensor, *args, **kwargs)
            start_ns = perf_counter_ns()
            result = method(tensor, *args, **kwargs)
            guard.run(self._synced, start_ns)
            return result

        return syncing

    def _synced(self, start_ns: int) -> None:
        phase = phases.FORWARD if self._rec.in_forward else phases.OTHER
        if internals.in_backward():
            phase = phases.BACKWARD
        self._rec.host_span(kinds.SYNC, start_ns, phase, name=user_line())


def _nothing(token: Any, error: BaseException | None) -> None:
    """Nothing is left to say at the end of the call."""


def user_line() -> str:
    """`file:line` of the innermost caller outside torch and this package."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((TORCH, "<")) and not is_ours(path):
            return f"{short_path(path)}:{frame.f_lineno}"
        if path == LAUNCHER:
            break
        frame = frame.f_back
    return "?"


def short_path(path: str) -> str:
    """Without the working directory."""
    try:
        return path.removeprefix(f"{Path.cwd()}{os.sep}")
    except OSError as error:
        let_through(error)
        return path  # the working directory has been removed
