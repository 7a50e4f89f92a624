"""What an allocation was for, by the frames it was made under.

From the innermost frame outwards, the first that decides counts: FSDP2 gathers within
a module's forward, and a checkpoint's forward runs within autograd's backward. What a
stack alone leaves open is a `Rest`: `buckets` closes it by what else the snapshot has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fsdpdoctor.memory_snapshot.call_site import is_users, of_torch
from fsdpdoctor.memory_snapshot.snapshot import Frame, Stack
from fsdpdoctor.schema.memory import Bucket

NO_STACK = "no stack was recorded"
NO_PYTHON = (
    "no Python frame: autograd's threads have none; record with stacks='all' to see "
    "C++ frames"
)
ONLY_CPP = "C++ frames alone, none of them autograd's"
MOVED = "parameters or buffers that fully_shard moved: its frame does not say which"
APPLIED = "parameters or buffers of Module.to or to_empty: its frame does not say which"
INITIALISED = "parameters or buffers of a module's __init__: its frame does not say"
ONLY_TORCH = "frames of torch alone, and none that is known to decide"
IN_OR_OUT = (
    "input or output of a reduce-scatter: no stream and no line tells them apart"
)
LAST_STEP = "state or temporary of the optimizer: the history ends within its step"
NO_LIFE = "state or temporary of the optimizer: no history tells how long it is held"


class Rest(Enum):
    """What a stack leaves open."""

    NOTHING = 0
    REDUCE = 1  # input or output of a reduce-scatter
    OPTIMIZER = 2  # a state or a temporary
    BACKWARD = 3  # a parameter's gradient or another's
    APPLY = 4  # a parameter or a buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Purpose:
    """What memory was for: a bucket, or why it cannot be told."""

    bucket: Bucket | None = None
    why: str = ""  # not told: the reason
    rest: Rest = Rest.NOTHING
    line: int = 0  # of the frame that decided, where `rest` is told by lines


_ROOMS = ("distributed/fsdp/_fully_shard/", "distributed/_composable/fsdp/")
"""Where FSDP2 lies: of torch 2.6 and later, and before."""

_BUCKET_OF: Mapping[str, Bucket] = {
    "foreach_all_gather": Bucket.GATHER_OUTPUTS,
    "foreach_all_gather_copy_out": Bucket.GATHER_OUTPUTS,  # other than Shard(0)
    "all_gather_copy_in_cuda": Bucket.GATHER_OUTPUTS,  # torch 2.4
    "_get_param_all_gather_inputs": Bucket.GATHER_OUTPUTS,
    "all_gather_inputs": Bucket.GATHER_OUTPUTS,
    "init_all_gather_outputs": Bucket.GATHERED_PARAMETERS,
    "alloc_all_gather_outputs": Bucket.GATHERED_PARAMETERS,
    "init_unsharded_param": Bucket.GATHERED_PARAMETERS,
    "foreach_reduce_scatter_copy_in": Bucket.REDUCE_INPUTS,
    "to_accumulated_grad_if_needed": Bucket.UNSHARDED_GRADIENTS,
    "accumulate_unsharded_grad_if_needed": Bucket.UNSHARDED_GRADIENTS,
    "unsharded_zero_grad_data": Bucket.UNSHARDED_GRADIENTS,
    "_init_sharded_param": Bucket.SHARDED_PARAMETERS,
    "reset_sharded_param": Bucket.SHARDED_PARAMETERS,
    "to_sharded_post_forward": Bucket.POST_FORWARD_SHARDS,
    "_cast_forward_inputs": Bucket.ACTIVATIONS,
    "_cast_output_dtype": Bucket.ACTIVATIONS,
    "_root_pre_forward": Bucket.OTHER,  # inputs that it moves to the device
}
"""FSDP2's functions, and what they allocate."""

_FORWARD = frozenset({"_call_impl", "_wrapped_call_impl"})
_MOVES = frozenset({"_apply"})
_ENGINE = "torch::autograd::Engine::"


def purpose_of(stack: Stack) -> Purpose:
    """What an allocation under a stack was for, as far as the stack tells."""
    inner: Frame | None = None
    in_functional = False
    for at, frame in enumerate(stack):
        file = of_torch(frame)
        if file is None:
            if _ENGINE in frame.function:
                return Purpose(bucket=Bucket.BACKWARD, rest=Rest.BACKWARD)
        else:
            in_functional |= file == "nn/functional.py"
            found = _of_torch_frame(file, frame, inner, stack[:at])
            if found is not None:
                return found
        if frame.file.endswith(".py"):
            inner = frame
    if in_functional:
        return Purpose(bucket=Bucket.ACTIVATIONS)
    return _undecided(stack)


def _undecided(stack: Stack) -> Purpose:
    if not stack:
        return Purpose(why=NO_PYTHON)
    users = next((frame for frame in stack if is_users(frame)), None)
    if users is None:
        python = any(frame.file.endswith(".py") for frame in stack)
        return Purpose(why=ONLY_TORCH if python else ONLY_CPP)
    if users.function == "__init__":
        return Purpose(why=INITIALISED)
    return Purpose(bucket=Bucket.OTHER)


def _of_torch_frame(
    file: str, frame: Frame, inner: Frame | None, within: Stack
) -> Purpose | None:
    """What one of torch's frames decides. `inner`: the Python frame that it called."""
    for room in _ROOMS:
        if file.startswith(room):
            return _of_fsdp2(frame, inner, within)
    match file.split("/"):
        case ["optim", *_]:
            if frame.function.startswith("_init"):
                return Purpose(bucket=Bucket.OPTIMIZER_STATES)
            return Purpose(bucket=Bucket.OPTIMIZER, rest=Rest.OPTIMIZER)
        case ["nn", "utils", "clip_grad.py"] | ["amp", "grad_scaler.py"]:
            return Purpose(bucket=Bucket.OPTIMIZER)
        case ["autograd", "function.py"]:
            if inner is not None and inner.function == "backward":
                return Purpose(bucket=Bucket.BACKWARD, rest=Rest.BACKWARD)
        case ["autograd", *_] | ["_tensor.py"]:
            if frame.function in ("backward", "grad", "_engine_run_backward"):
                return Purpose(bucket=Bucket.BACKWARD, rest=Rest.BACKWARD)
        case ["utils", "checkpoint.py"]:
            if frame.function == "recompute_fn":
                return Purpose(bucket=Bucket.ACTIVATIONS)
        case ["nn", "modules", "module.py"]:
            return _of_module(frame, within)
        case ["nn", "modules", name]:
            if frame.function == "__init__" and name != "batchnorm.py":
                return Purpose(bucket=Bucket.OUTSIDE_PARAMETERS)
    return None


def _of_module(frame: Frame, within: Stack) -> Purpose | None:
    if frame.function in _FORWARD:
        return Purpose(bucket=Bucket.ACTIVATIONS)
    if frame.function not in _MOVES:
        return None
    files = [of_torch(one) or "" for one in within]
    if any(file.startswith("distributed/tensor/") for file in files):
        return Purpose(
            bucket=Bucket.SHARDED_PARAMETERS, rest=Rest.APPLY, line=frame.line
        )
    return Purpose(why=APPLIED, rest=Rest.APPLY, line=frame.line)


def _of_fsdp2(frame: Frame, inner: Frame | None, within: Stack) -> Purpose | None:
    if frame.function == "_move_states_to_device":
        return Purpose(why=MOVED)
    if frame.function != "foreach_reduce":
        bucket = _BUCKET_OF.get(frame.function)
        return None if bucket is None else Purpose(bucket=bucket)
    if inner is not None and inner.function == "_to_dtype_if_needed":
        return Purpose(bucket=Bucket.GRADIENTS)
    if inner is not None and inner.function != "allocate":
        # A hook of the user's runs here too.
        hook = any(is_users(one) for one in within)
        return Purpose(bucket=Bucket.OTHER if hook else Bucket.REDUCE_INPUTS)
    return Purpose(bucket=Bucket.REDUCE_INPUTS, rest=Rest.REDUCE, line=frame.line)
