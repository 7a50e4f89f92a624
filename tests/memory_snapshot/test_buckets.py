"""What allocations were for: where stacks leave it open, and against a live FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.memory_snapshot.diagnose_snapshot import diagnose_snapshot
from fsdpdoctor.memory_snapshot.purpose import (
    IN_OR_OUT,
    LAST_STEP,
    Purpose,
    Rest,
    purpose_of,
)
from fsdpdoctor.memory_snapshot.snapshot import Frame, Stack
from fsdpdoctor.memory_snapshot.snapshot_report import Held
from fsdpdoctor.schema.memory import Bucket
from tests.memory_snapshot.drawn_snapshot import (
    COMPUTE,
    COPY_OUT,
    ENGINE,
    FOREACH,
    LOOP,
    REDUCE_FREE,
    REDUCE_INPUT,
    REDUCE_OUTPUT,
    REDUCE_STREAM,
    STEP,
    TORCH,
    TRAIN,
    Drawn,
    Frames,
)

SGD: Frames = ((f"{TORCH}/optim/sgd.py", 400, "_multi_tensor_sgd"), *STEP)


def told(drawn: Drawn, folder: Path) -> dict[str | None, int]:
    """Bytes that are held at the end, by what they are for; None: it is not told."""
    (device,) = diagnose_snapshot(drawn.write(folder / "rank0.pickle")).devices
    return {row.bucket: row.bytes for row in device.end.buckets}


def reasons(held: Held) -> list[str | None]:
    """Why parts are not told."""
    return [row.why for row in held.buckets if row.bucket is None]


def test_a_reduce_scatter_is_told_by_its_streams(tmp_path: Path) -> None:
    """Its input is made where parameters are copied out, its output on another."""
    drawn = Drawn()
    drawn.alloc("gathered", 4000, COPY_OUT)
    drawn.alloc("input", 300, REDUCE_INPUT)
    drawn.alloc("output", 70, REDUCE_OUTPUT, REDUCE_STREAM)

    found = told(drawn, tmp_path)

    assert (found["reduce_inputs"], found["gradients"]) == (300, 70)


def test_a_reduce_scatter_on_one_stream_is_told_by_its_lines(tmp_path: Path) -> None:
    """foreach_reduce makes the input first."""
    drawn = Drawn()
    drawn.alloc("output", 70, REDUCE_OUTPUT)
    drawn.alloc("input", 300, REDUCE_INPUT)

    found = told(drawn, tmp_path)

    assert (found["reduce_inputs"], found["gradients"]) == (300, 70)


def test_half_a_reduce_scatter_cannot_be_told(tmp_path: Path) -> None:
    """One line, and one stream."""
    drawn = Drawn()
    drawn.alloc("either", 70, REDUCE_OUTPUT)

    (device,) = diagnose_snapshot(drawn.write(tmp_path / "rank0.pickle")).devices

    assert reasons(device.end) == [IN_OR_OUT]


def test_compute_may_run_on_a_stream_of_its_own(tmp_path: Path) -> None:
    """What the script sets: the copy-out's stream is where inputs are made."""
    drawn = Drawn()
    drawn.alloc("gathered", 4000, COPY_OUT, 5)
    drawn.alloc("input", 300, REDUCE_INPUT, 5)
    drawn.alloc("output", 70, REDUCE_INPUT, COMPUTE)

    assert told(drawn, tmp_path)["gradients"] == 70


def test_a_state_outlives_the_optimizer_s_step(tmp_path: Path) -> None:
    """SGD clones its momenta where others have temporaries."""
    drawn = Drawn()
    drawn.alloc("momentum", 1000, SGD)
    drawn.alloc("update", 2000, SGD)
    drawn.free("update", SGD)
    drawn.alloc("next batch", 10, LOOP)
    drawn.alloc("update", 2000, SGD)

    (device,) = diagnose_snapshot(drawn.write(tmp_path / "rank0.pickle")).devices

    assert {row.bucket: row.bytes for row in device.end.buckets} == {
        "optimizer_states": 1000,
        "other": 10,
        None: 2000,  # the history ends within the step
    }
    assert reasons(device.end) == [LAST_STEP]
    assert device.peak is not None
    assert device.peak.held_bytes == 3010


def test_temporaries_of_the_optimizer_are_told(tmp_path: Path) -> None:
    """At the peak within a step."""
    drawn = Drawn()
    drawn.alloc("a", 2000, FOREACH)
    drawn.free("a", FOREACH)
    drawn.alloc("b", 10, LOOP)

    (device,) = diagnose_snapshot(drawn.write(tmp_path / "rank0.pickle")).devices

    assert device.peak is not None
    assert {row.bucket: row.bytes for row in device.peak.buckets} == {"optimizer": 2000}


def test_what_foreach_reduce_frees_was_a_gradient(tmp_path: Path) -> None:
    """Other gradients pass through backward."""
    drawn = Drawn()
    drawn.alloc("of a parameter", 500, ENGINE)
    drawn.alloc("of an activation", 60, ENGINE)
    drawn.free("of a parameter", REDUCE_FREE)
    drawn.free("of an activation", ENGINE)

    (device,) = diagnose_snapshot(drawn.write(tmp_path / "rank0.pickle")).devices

    assert device.peak is not None
    assert {row.bucket: row.bytes for row in device.peak.buckets} == {
        "unsharded_gradients": 500,
        "backward": 60,
    }


def moved(line: int, *inner: tuple[str, int, str]) -> Frames:
    """Module._apply at one of its lines."""
    return (
        *inner,
        (f"{TORCH}/nn/modules/module.py", line, "_apply"),
        (f"{TORCH}/nn/modules/module.py", 1121, "to_empty"),
        (TRAIN, 31, "main"),
    )


def test_buffers_are_moved_on_a_later_line_than_parameters(tmp_path: Path) -> None:
    """Sharded parameters are DTensors; without any it cannot be told."""
    dtensor = (f"{TORCH}/distributed/tensor/_dispatch.py", 200, "dispatch")
    drawn = Drawn()
    drawn.alloc("weight", 1000, moved(964, dtensor))
    drawn.alloc("unsharded", 30, moved(964))
    drawn.alloc("buffer", 70, moved(1022))

    assert told(drawn, tmp_path) == {
        "sharded_parameters": 1000,
        "buffers": 70,
        None: 30,
    }


class Live:
    """Stacks under which storages came to be here, as torch gathers them."""

    def __init__(self) -> None:
        self.stack_of: dict[int, Stack] = {}
        self._kept: list[Any] = []  # addresses are not used again

    def saw(self, tensor: Any) -> None:
        """A tensor: its storage's first stack is the one it was made under."""
        from torch._C._profiler import gather_traceback, symbolize_tracebacks

        storage = tensor.untyped_storage()
        if storage._cdata in self.stack_of or not storage.nbytes():
            return
        self._kept.append(storage)
        (frames,) = symbolize_tracebacks([gather_traceback(True, True, False)])
        self.stack_of[storage._cdata] = tuple(
            Frame(str(one["filename"]), int(one["line"]), str(one["name"]))
            for one in frames
            if one["filename"] != __file__ or one["name"] in ("step", "forward")
        )

    def purpose(self, tensor: Any) -> Purpose:
        """What the stack says that a tensor's memory is for."""
        return purpose_of(self.stack_of[tensor.untyped_storage()._cdata])

    def bucket_of(self, tensor: Any) -> tuple[Bucket | None, Rest]:
        """The same in short."""
        found = self.purpose(tensor)
        return found.bucket, found.rest


@contextmanager
def watched(live: Live) -> Iterator[None]:
    """Sees every storage: what operators return, and what FSDP2 gives storage again."""
    import torch
    from torch.distributed.fsdp._fully_shard import _fsdp_param
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            for one in tree_leaves(made):
                if isinstance(one, torch.Tensor):
                    live.saw(getattr(one, "_local_tensor", one))
            return made

    original = _fsdp_param.alloc_storage

    def alloc_storage(tensor: torch.Tensor) -> None:
        original(tensor)
        live.saw(tensor)

    with pytest.MonkeyPatch.context() as patch, Mode():  # type: ignore[no-untyped-call]
        patch.setattr(_fsdp_param, "alloc_storage", alloc_storage)
        yield


class Job:
    """A step of a real FSDP2, and tensors whose purpose is known by what they are."""

    def __init__(self, live: Live) -> None:
        self.outputs: list[Any] = []  # of all-gathers
        self.inputs: list[Any] = []  # of reduce-scatters
        self.saved: list[Any] = []  # for the backward
        with pytest.MonkeyPatch.context() as patch, watched(live):
            self._keep(patch)
            self._step()

    def _keep(self, patch: pytest.MonkeyPatch) -> None:
        from torch.distributed.fsdp._fully_shard import _fsdp_param_group

        module: Any = _fsdp_param_group
        gather, reduce = module.foreach_all_gather, module.foreach_reduce

        def foreach_all_gather(*args: Any) -> Any:
            found = gather(*args)
            self.outputs.append(found.all_gather_output)
            return found

        def foreach_reduce(*args: Any, **kwargs: Any) -> Any:
            found = reduce(*args, **kwargs)
            self.inputs.append(found[0])
            return found

        patch.setattr(module, "foreach_all_gather", foreach_all_gather)
        patch.setattr(module, "foreach_reduce", foreach_reduce)

    def _step(self) -> None:
        import torch
        from torch import nn
        from torch.distributed.fsdp import fully_shard

        layers = [nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)]
        model = nn.Sequential(*layers)
        for layer in layers[::2]:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            self.saved.append(tensor)
            return tensor

        batch = torch.ones(4, 8)
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = model(batch).sum()
        loss.backward()
        optimizer.step()
        parameters: list[Any] = list(model.parameters())
        self.parameters = [one.to_local() for one in parameters]
        self.gradients = [one.grad.to_local() for one in parameters]
        self.states = [
            one.to_local()
            for each in optimizer.state.values()
            for name, one in each.items()
            if name != "step"
        ]
        state = fully_shard.state(layers[0])  # type: ignore[attr-defined]
        group = state._fsdp_param_group
        self.gathered = [o for p in group.fsdp_params for o in p.all_gather_outputs]


def test_a_live_fsdp2_is_told_by_its_stacks(fake_group: None) -> None:
    """Each tensor of a step, in the installed torch, is what its stack says."""
    live = Live()
    job = Job(live)

    def buckets(tensors: list[Any]) -> set[tuple[Bucket | None, Rest]]:
        return {live.bucket_of(one) for one in tensors}

    assert buckets(job.parameters) == {(Bucket.SHARDED_PARAMETERS, Rest.NOTHING)}
    assert buckets(job.states) == {(Bucket.OPTIMIZER_STATES, Rest.NOTHING)}
    assert buckets(job.gathered) == {(Bucket.GATHERED_PARAMETERS, Rest.NOTHING)}
    assert buckets(job.outputs) == {(Bucket.GATHER_OUTPUTS, Rest.NOTHING)}
    reduced = job.inputs + job.gradients
    assert buckets(reduced) == {(Bucket.REDUCE_INPUTS, Rest.REDUCE)}
    assert (Bucket.ACTIVATIONS, Rest.NOTHING) in buckets(job.saved)
    lines = {
        live.purpose(one).line: name
        for name, tensors in (("input", job.inputs), ("output", job.gradients))
        for one in tensors
    }
    assert [lines[line] for line in sorted(lines)] == ["input", "output"]


@pytest.fixture
def fake_group() -> Iterator[None]:
    """Rank 0 of 2, of which the other is not there."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()
