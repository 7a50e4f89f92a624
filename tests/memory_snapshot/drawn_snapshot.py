"""Memory snapshots from a scripted list of allocations, so that truth is known to the
byte: in the layouts that torch has had, with FSDP2's own frames.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

TORCH = "/usr/lib/python3.11/site-packages/torch"
FSDP2 = f"{TORCH}/distributed/fsdp/_fully_shard"
TRAIN = "/home/me/job/train.py"
MODEL = "/home/me/job/model.py"

Frames = tuple[tuple[str, int, str], ...]
"""File, line and function, innermost first."""

LOOP: Frames = ((TRAIN, 50, "main"), (TRAIN, 90, "<module>"))
CALL: Frames = (
    (f"{TORCH}/nn/modules/module.py", 1789, "_call_impl"),
    (f"{TORCH}/nn/modules/module.py", 1778, "_wrapped_call_impl"),
)
FORWARD: Frames = ((MODEL, 20, "forward"), *CALL, *LOOP)
HOOK: Frames = (
    (f"{FSDP2}/_fsdp_param_group.py", 548, "pre_forward"),
    (f"{FSDP2}/_fsdp_state.py", 310, "_pre_forward"),
    *CALL,
    *LOOP,
)
GATHER: Frames = (
    (f"{FSDP2}/_fsdp_collectives.py", 59, "allocate"),
    (f"{FSDP2}/_fsdp_collectives.py", 351, "foreach_all_gather"),
    (f"{FSDP2}/_fsdp_param_group.py", 407, "unshard"),
    *HOOK,
)
COPY_OUT: Frames = (
    (f"{FSDP2}/_fsdp_param.py", 1069, "alloc_storage"),
    (f"{FSDP2}/_fsdp_param.py", 825, "alloc_all_gather_outputs"),
    (f"{FSDP2}/_fsdp_collectives.py", 464, "foreach_all_gather_copy_out"),
    (f"{FSDP2}/_fsdp_param_group.py", 463, "wait_for_unshard"),
    *HOOK,
)
SHARD: Frames = (
    (f"{FSDP2}/_fsdp_param.py", 307, "_init_sharded_param"),
    (f"{FSDP2}/_fsdp_param.py", 225, "__init__"),
    (f"{FSDP2}/_fsdp_param_group.py", 190, "__init__"),
    (f"{FSDP2}/_fully_shard.py", 260, "fully_shard"),
    (TRAIN, 30, "main"),
)
ENGINE: Frames = (
    ("??", 0, "torch::autograd::generated::MmBackward0::apply"),
    ("??", 0, "torch::autograd::Engine::evaluate_function"),
    ("??", 0, "torch::autograd::Engine::thread_main"),
)
POST_BACKWARD: Frames = (
    (f"{FSDP2}/_fsdp_param_group.py", 690, "post_backward"),
    (f"{FSDP2}/_fsdp_param_group.py", 1128, "backward"),
    (f"{TORCH}/autograd/function.py", 315, "apply"),
    *ENGINE[1:],
)
REDUCE_INPUT: Frames = (
    (f"{FSDP2}/_fsdp_collectives.py", 59, "allocate"),
    (f"{FSDP2}/_fsdp_collectives.py", 597, "foreach_reduce"),
    *POST_BACKWARD,
)
REDUCE_OUTPUT: Frames = (
    (f"{FSDP2}/_fsdp_collectives.py", 59, "allocate"),
    (f"{FSDP2}/_fsdp_collectives.py", 612, "foreach_reduce"),
    *POST_BACKWARD,
)
REDUCE_FREE: Frames = (
    (f"{FSDP2}/_fsdp_collectives.py", 606, "foreach_reduce"),
    *POST_BACKWARD,
)
STEP: Frames = (
    (f"{TORCH}/optim/optimizer.py", 516, "wrapper"),
    (TRAIN, 55, "main"),
)
STATE: Frames = (
    (f"{TORCH}/optim/adam.py", 178, "_init_group"),
    (f"{TORCH}/optim/adam.py", 230, "step"),
    *STEP,
)
FOREACH: Frames = (
    (f"{TORCH}/optim/adam.py", 640, "_multi_tensor_adam"),
    (f"{TORCH}/optim/adam.py", 247, "step"),
    *STEP,
)

COMPUTE, REDUCE_STREAM, GATHER_STREAM = 0, 7, 9

ROUND = 512
SEGMENT = 20 << 20


class Layout(StrEnum):
    """How a torch lays a snapshot out."""

    TORCH_2_13 = "2.13"
    TORCH_2_1 = "2.1"  # times and frames in blocks, and no annotations
    TORCH_2_0 = "2.0"  # a block's stack in its history, and no times
    TORCH_1_12 = "1.12"  # a list of segments


@dataclass
class Live:
    """What the allocator holds of one name."""

    address: int
    size: int
    stream: int
    frames: Frames | None
    metadata: str
    segment: int
    awaiting: bool = False


@dataclass
class Drawn:
    """An allocator that does what a test says, and remembers it as torch does."""

    python_only: bool = False  # stacks="python": frames of C++ are left out
    live: dict[str, Live] = field(default_factory=dict)
    segments: list[int] = field(default_factory=list)  # addresses
    events: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    recording: bool = True
    time_us: int = 1_700_000_000_000_000
    _used: int = SEGMENT  # of the last segment
    _free: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    _frame_dicts: dict[tuple[str, int, str], dict[str, Any]] = field(
        default_factory=dict
    )

    def alloc(
        self,
        name: str,
        size: int,
        frames: Frames | None,
        stream: int = COMPUTE,
        metadata: str = "",
    ) -> None:
        """Allocate; `frames` None: recorded without a stack."""
        rounded = -(-size // ROUND) * ROUND
        reusable = self._free.get((rounded, stream))
        if reusable:
            address, segment = reusable.pop()
        else:
            address, segment = self._carve(rounded)
        self.live[name] = Live(address, size, stream, frames, metadata, segment)
        self._event("alloc", address, size, stream, frames, metadata)

    def free(
        self, name: str, frames: Frames | None = LOOP, *, completes: bool = True
    ) -> None:
        """Ask to free, and free unless another stream still uses it."""
        one = self.live[name]
        self._event("free_requested", one.address, one.size, one.stream, frames)
        one.awaiting = True
        if completes:
            self.complete(name, frames)

    def complete(self, name: str, frames: Frames | None = LOOP) -> None:
        """Nothing uses it any more."""
        one = self.live.pop(name)
        self._event("free_completed", one.address, one.size, one.stream, frames)
        rounded = -(-one.size // ROUND) * ROUND
        self._free.setdefault((rounded, one.stream), []).append(
            (one.address, one.segment)
        )

    def begin(self, name: str) -> None:
        """A record_function begins."""
        self._annotate(name, "START")

    def end(self, name: str) -> None:
        """It ends."""
        self._annotate(name, "END")

    def oom(self, size: int, device_free: int, frames: Frames | None) -> None:
        """An allocation that does not fit."""
        self._event("oom", device_free, size, COMPUTE, frames)

    def content(self, layout: Layout = Layout.TORCH_2_13) -> Any:
        """What torch would pickle."""
        blocks = [self._segment(address, layout) for address in self.segments]
        if layout is Layout.TORCH_1_12:
            return blocks
        events = [dict(event) for event in self.events]
        if layout is Layout.TORCH_2_0:
            for event in events:
                del event["time_us"]
        said: dict[str, Any] = {"segments": blocks, "device_traces": [events]}
        if layout is Layout.TORCH_2_13:
            said["allocator_settings"] = {
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"
            }
            said["external_annotations"] = self.annotations
        return said

    def write(
        self, path: Path, layout: Layout = Layout.TORCH_2_13, protocol: int = 4
    ) -> Path:
        """The same as a file."""
        path.write_bytes(pickle.dumps(self.content(layout), protocol=protocol))
        return path

    def _carve(self, rounded: int) -> tuple[int, int]:
        if self._used + rounded > SEGMENT:
            address = 0x7F00_0000_0000 + len(self.segments) * 2 * SEGMENT
            self.segments.append(address)
            self._used = 0
            self._event("segment_alloc", address, SEGMENT, COMPUTE, None)
        at = self.segments[-1] + self._used
        self._used += rounded
        return at, self.segments[-1]

    def _event(
        self,
        action: str,
        address: int,
        size: int,
        stream: int,
        frames: Frames | None,
        metadata: str = "",
    ) -> None:
        self.time_us += 10
        if not self.recording:
            return
        entry: dict[str, Any] = {
            "action": action,
            "device_free" if action == "oom" else "addr": address,
            "size": size,
            "stream": stream,
            "time_us": self.time_us,
            "pool_id": (0, 0),
        }
        if frames is not None:
            entry["frames"] = self._frames(frames)
        if metadata:
            entry["user_metadata"] = metadata
        self.events.append(entry)

    def _annotate(self, name: str, stage: str) -> None:
        self.time_us += 10
        self.annotations.append(
            {"name": name, "stage": stage, "device": 0, "time_us": self.time_us}
        )

    def _frames(self, frames: Frames) -> list[dict[str, Any]]:
        """Each frame is one dict, which stacks share, as torch has it."""
        return [
            self._frame_dicts.setdefault(
                (file, line, name), {"name": name, "filename": file, "line": line}
            )
            for file, line, name in frames
            if not self.python_only or file != "??"
        ]

    def _segment(self, address: int, layout: Layout) -> dict[str, Any]:
        mine = sorted(
            (one for one in self.live.values() if one.segment == address),
            key=lambda one: one.address,
        )
        blocks: list[dict[str, Any]] = []
        at = address
        for one in [*mine, None]:
            until = address + SEGMENT if one is None else one.address
            if until > at:
                blocks.append(_inactive(at, until - at, layout))
            if one is not None:
                blocks.append(self._block(one, layout))
                at = one.address + blocks[-1]["size"]
        used = sum(b["size"] for b in blocks if b["state"] != "inactive")
        return {
            "device": 0,
            "address": address,
            "total_size": SEGMENT,
            "allocated_size": used,
            "active_size": used,
            "stream": COMPUTE,
            "segment_type": "large",
            "blocks": blocks,
        } | ({"segment_pool_id": (0, 0)} if layout is Layout.TORCH_2_13 else {})

    def _block(self, one: Live, layout: Layout) -> dict[str, Any]:
        frames = [] if one.frames is None else self._frames(one.frames)
        said: dict[str, Any] = {
            "size": -(-one.size // ROUND) * ROUND,
            "state": "active_pending_free" if one.awaiting else "active_allocated",
        }
        if layout in (Layout.TORCH_2_0, Layout.TORCH_1_12):
            history = {"addr": one.address, "real_size": one.size, "frames": frames}
            return said | {"history": [history]}
        return said | {
            "address": one.address,
            "requested_size": one.size,
            "frames": frames,
        }


def _inactive(address: int, size: int, layout: Layout) -> dict[str, Any]:
    said: dict[str, Any] = {"size": size, "state": "inactive"}
    if layout in (Layout.TORCH_2_0, Layout.TORCH_1_12):
        return said
    return said | {"address": address, "requested_size": 0, "frames": []}


UNITS = ("layers.0", "layers.1")


def draw_steps(
    drawn: Drawn, steps: int, *, annotated: bool = True, leak: int = 0
) -> None:
    """A training of two units: shards of 1000 bytes, gathered to 4000, activations of
    3000, gradients of 5000 that are reduced to 1000, two optimizer states a shard.
    """
    for unit in UNITS:
        drawn.alloc(f"shard {unit}", 1000, SHARD)
    for step in range(steps):
        for unit in UNITS:
            _gather(drawn, unit, "pre_forward", annotated)
            drawn.alloc(f"activation {unit}", 3000, FORWARD)
            _ranged(drawn, f"FSDP::post_forward ({unit})", annotated)
            drawn.free(f"gathered {unit}", HOOK)
        for unit in reversed(UNITS):
            _gather(drawn, unit, "pre_backward", annotated)
            drawn.alloc(f"gradient {unit}", 5000, ENGINE)
            drawn.free(f"activation {unit}", ENGINE)
            _reduce(drawn, unit, step, annotated)
        if leak:
            drawn.alloc(f"loss {step}", leak, ((TRAIN, 52, "main"), *LOOP[1:]))
        _optimizer_step(drawn, step, annotated)


def _ranged(drawn: Drawn, name: str, annotated: bool) -> None:
    if annotated:
        drawn.begin(name)
        drawn.end(name)


def _gather(drawn: Drawn, unit: str, hook: str, annotated: bool) -> None:
    names = [f"FSDP::{hook} ({unit})", f"FSDP::all_gather ({unit})"]
    for name in names if annotated else ():
        drawn.begin(name)
    drawn.alloc(f"output {unit}", 4000, GATHER, GATHER_STREAM)
    if annotated:
        drawn.end(names[1])
    drawn.alloc(f"gathered {unit}", 4000, COPY_OUT)
    drawn.free(f"output {unit}", HOOK)
    if annotated:
        drawn.end(names[0])


def _reduce(drawn: Drawn, unit: str, step: int, annotated: bool) -> None:
    name = f"FSDP::post_backward_reduce ({unit})"
    if annotated:
        drawn.begin(name)
    drawn.free(f"gathered {unit}", POST_BACKWARD)
    drawn.alloc(f"input {unit}", 4000, REDUCE_INPUT)
    drawn.free(f"gradient {unit}", REDUCE_FREE)
    drawn.alloc(f"reduced {unit}", 1000, REDUCE_OUTPUT, REDUCE_STREAM)
    drawn.free(f"input {unit}", POST_BACKWARD)
    if annotated:
        drawn.end(name)


def _optimizer_step(drawn: Drawn, step: int, annotated: bool) -> None:
    if annotated:
        drawn.begin("Optimizer.step#AdamW.step")
    for unit in UNITS if step == 0 else ():
        drawn.alloc(f"exp_avg {unit}", 1000, STATE)
        drawn.alloc(f"exp_avg_sq {unit}", 1000, STATE)
    drawn.alloc("update", 2000, FOREACH)
    drawn.free("update", FOREACH)
    if annotated:
        drawn.end("Optimizer.step#AdamW.step")
    for unit in UNITS:
        drawn.free(f"reduced {unit}", LOOP)


def functions_of(frames: Sequence[tuple[str, int, str]]) -> set[tuple[str, str]]:
    """FSDP2's files and functions in a stack, for comparing with an installed torch."""
    return {
        (file.removeprefix(f"{TORCH}/"), name)
        for file, _, name in frames
        if file.startswith(FSDP2)
    }
