"""What an allocation was for, by its frames alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdpdoctor.memory_snapshot.call_site import of_torch, place, users_frame
from fsdpdoctor.memory_snapshot.purpose import (
    APPLIED,
    INITIALISED,
    MOVED,
    NO_PYTHON,
    ONLY_CPP,
    ONLY_TORCH,
    Purpose,
    Rest,
    purpose_of,
)
from fsdpdoctor.memory_snapshot.snapshot import Frame, Stack
from fsdpdoctor.schema.memory import Bucket
from tests.memory_snapshot.drawn_snapshot import (
    COPY_OUT,
    ENGINE,
    FOREACH,
    FORWARD,
    FSDP2,
    GATHER,
    HOOK,
    LOOP,
    MODEL,
    POST_BACKWARD,
    REDUCE_FREE,
    REDUCE_INPUT,
    REDUCE_OUTPUT,
    SHARD,
    STATE,
    STEP,
    TORCH,
    TRAIN,
    Frames,
    functions_of,
)

PARAM = f"{FSDP2}/_fsdp_param.py"
COLLECTIVES = f"{FSDP2}/_fsdp_collectives.py"
BACKWARD_CALL: Frames = (
    (f"{TORCH}/autograd/graph.py", 850, "_engine_run_backward"),
    (f"{TORCH}/autograd/__init__.py", 350, "backward"),
    (f"{TORCH}/_tensor.py", 650, "backward"),
    *LOOP,
)
APPLY: Frames = (
    (f"{TORCH}/nn/modules/module.py", 1120, "<lambda>"),
    (f"{TORCH}/nn/modules/module.py", 964, "_apply"),
    (f"{TORCH}/nn/modules/module.py", 934, "_apply"),
    (f"{TORCH}/nn/modules/module.py", 1121, "to_empty"),
    (TRAIN, 31, "main"),
)


def stack(*frames: tuple[str, int, str]) -> Stack:
    """Frames as a snapshot has them."""
    return tuple(Frame(*frame) for frame in frames)


OLD = f"{TORCH}/distributed/_composable/fsdp/_fsdp_collectives.py"  # of torch 2.4
CAST: Frames = (
    (f"{FSDP2}/_fsdp_common.py", 177, "_to_dtype_if_needed"),
    (COLLECTIVES, 700, "foreach_reduce"),
    *POST_BACKWARD,
)
RECOMPUTED: Frames = (
    *FORWARD[:3],
    (f"{TORCH}/utils/checkpoint.py", 1100, "recompute_fn"),
    *ENGINE[1:],
)
LOSS: Frames = ((f"{TORCH}/nn/functional.py", 3494, "cross_entropy"), *LOOP)
CLIP: Frames = ((f"{TORCH}/nn/utils/clip_grad.py", 90, "_get_total_norm"), *LOOP)
LINEAR: Frames = ((f"{TORCH}/nn/modules/linear.py", 112, "__init__"), *LOOP)
OWN_BACKWARD: Frames = (
    (MODEL, 70, "backward"),
    (f"{TORCH}/autograd/function.py", 315, "apply"),
    *ENGINE[1:],
)
OWN_FORWARD: Frames = (
    (MODEL, 60, "forward"),
    (f"{TORCH}/autograd/function.py", 575, "apply"),
    *FORWARD,
)
MOVED_IN: Frames = ((f"{FSDP2}/_fsdp_init.py", 405, "_move_states_to_device"), *LOOP)
BUFFER: Frames = ((MODEL, 8, "__init__"), *LOOP)


@pytest.mark.parametrize(
    ("frames", "bucket"),
    [
        (GATHER, Bucket.GATHER_OUTPUTS),
        (((COLLECTIVES, 419, "_get_param_all_gather_inputs"), *GATHER[1:]), "gather"),
        (((PARAM, 840, "all_gather_inputs"), *GATHER[1:]), Bucket.GATHER_OUTPUTS),
        (((OLD, 140, "foreach_all_gather"), *HOOK), Bucket.GATHER_OUTPUTS),
        (COPY_OUT[2:], Bucket.GATHER_OUTPUTS),  # of other than Shard(0)
        (COPY_OUT, Bucket.GATHERED_PARAMETERS),
        (((PARAM, 625, "init_all_gather_outputs"), *HOOK), Bucket.GATHERED_PARAMETERS),
        (SHARD, Bucket.SHARDED_PARAMETERS),
        (((PARAM, 733, "to_sharded_post_forward"), *HOOK), Bucket.POST_FORWARD_SHARDS),
        (((PARAM, 813, "to_accumulated_grad_if_needed"), *POST_BACKWARD), "unsharded"),
        (CAST, Bucket.GRADIENTS),
        (FORWARD, Bucket.ACTIVATIONS),
        (RECOMPUTED, Bucket.ACTIVATIONS),
        (OWN_FORWARD, Bucket.ACTIVATIONS),
        (LOSS, Bucket.ACTIVATIONS),
        (STATE, Bucket.OPTIMIZER_STATES),
        (CLIP, Bucket.OPTIMIZER),
        (LINEAR, Bucket.OUTSIDE_PARAMETERS),
        (LOOP, Bucket.OTHER),
    ],
)
def test_a_stack_tells(frames: Frames, bucket: Bucket | str) -> None:
    """What FSDP2, the model, the optimizer and the script allocate."""
    short = {
        "gather": Bucket.GATHER_OUTPUTS,
        "unsharded": Bucket.UNSHARDED_GRADIENTS,
    }
    expected = bucket if isinstance(bucket, Bucket) else short[bucket]

    assert purpose_of(stack(*frames)) == Purpose(bucket=expected)


@pytest.mark.parametrize(
    ("frames", "purpose"),
    [
        (
            REDUCE_INPUT,
            Purpose(bucket=Bucket.REDUCE_INPUTS, rest=Rest.REDUCE, line=597),
        ),
        (
            REDUCE_OUTPUT,
            Purpose(bucket=Bucket.REDUCE_INPUTS, rest=Rest.REDUCE, line=612),
        ),
        (FOREACH, Purpose(bucket=Bucket.OPTIMIZER, rest=Rest.OPTIMIZER)),
        # An optimizer of the user's own, under torch's wrapper.
        (
            ((MODEL, 99, "step"), *STEP),
            Purpose(bucket=Bucket.OPTIMIZER, rest=Rest.OPTIMIZER),
        ),
        (ENGINE, Purpose(bucket=Bucket.BACKWARD, rest=Rest.BACKWARD)),
        (BACKWARD_CALL, Purpose(bucket=Bucket.BACKWARD, rest=Rest.BACKWARD)),
        (OWN_BACKWARD, Purpose(bucket=Bucket.BACKWARD, rest=Rest.BACKWARD)),
        (APPLY, Purpose(why=APPLIED, rest=Rest.APPLY, line=964)),
        (
            ((f"{TORCH}/distributed/tensor/_dispatch.py", 200, "dispatch"), *APPLY),
            Purpose(bucket=Bucket.SHARDED_PARAMETERS, rest=Rest.APPLY, line=964),
        ),
    ],
)
def test_a_stack_tells_in_part(frames: Frames, purpose: Purpose) -> None:
    """What more than the stack is needed for."""
    assert purpose_of(stack(*frames)) == purpose


@pytest.mark.parametrize(
    ("frames", "why"),
    [
        ((), NO_PYTHON),
        ((("??", 0, "at::native::empty_cuda"),), ONLY_CPP),
        (((f"{TORCH}/cuda/graphs.py", 80, "capture_begin"),), ONLY_TORCH),
        (MOVED_IN, MOVED),
        (BUFFER, INITIALISED),
    ],
)
def test_a_stack_does_not_tell(frames: Frames, why: str) -> None:
    """And the reason."""
    assert purpose_of(stack(*frames)) == Purpose(why=why)


def test_a_hook_that_fsdp2_calls_is_the_user_s() -> None:
    """It runs within foreach_reduce, and is no reduce-scatter."""
    hook = ((TRAIN, 12, "compress"), REDUCE_FREE[0], *POST_BACKWARD)

    assert purpose_of(stack(*hook)) == Purpose(bucket=Bucket.OTHER)


def test_fsdp2_s_functions_are_those_of_this_torch() -> None:
    """The frames that tests draw are of functions that the installed torch has."""
    import torch

    drawn = set().union(
        *map(functions_of, (GATHER, COPY_OUT, SHARD, REDUCE_INPUT, POST_BACKWARD))
    )
    folder = Path(torch.__file__).parent
    missing = [
        (file, name)
        for file, name in sorted(drawn)
        if not re.search(rf"def {name}\(", (folder / file).read_text())
    ]

    assert missing == []


@pytest.mark.parametrize(
    ("file", "within"),
    [
        (f"{TORCH}/optim/adam.py", "optim/adam.py"),
        (r"C:\py\Lib\site-packages\torch\nn\functional.py", "nn/functional.py"),
        ("/opt/pytorch/torch/autograd/graph.py", "autograd/graph.py"),
        ("/home/me/torch/train.py", None),
        ("/usr/lib/python3.11/site-packages/torchtitan/train.py", None),
    ],
)
def test_whose_a_file_is(file: str, within: str | None) -> None:
    """Torch's by where it lies, installed or built."""
    assert of_torch(Frame(file, 1, "f")) == within


def test_the_user_s_line_is_the_innermost_that_is_not_torch_s() -> None:
    """Nor Python's, nor a compiler's output, nor a decorator's."""
    packages = "/usr/lib/python3.11/site-packages"
    frames = stack(
        ("/tmp/torchinductor_me/ab/cab.py", 40, "call"),
        ("/usr/lib/python3.11/contextlib.py", 81, "inner"),
        (f"{packages}/transformers/utils/generic.py", 900, "wrapper"),
        (f"{packages}/transformers/models/llama/modeling_llama.py", 300, "forward"),
        *LOOP,
    )

    found = users_frame(frames)

    assert found is not None
    assert place(found) == "llama/modeling_llama.py:300"
