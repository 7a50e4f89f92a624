"""What an exception that ends a training means, and which change answers it."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """An exception in the field's words."""

    means: str  # follows a colon
    change: str


def _m(pattern: str, means: str, change: str) -> tuple[str, Meaning]:
    return pattern, Meaning(means=means, change=change)


_KNOWN = (
    _m(
        r"must have the same mesh|operands.*different mesh|meshes? (do|does) not match",
        "parameters sharded on two device meshes meet in one operation, as in clipping "
        "over all of them",
        "Work per mesh: group the parameters by their DTensor's device_mesh, take each "
        "group's norm with torch.nn.utils.get_total_norm, combine the norms as plain "
        "tensors, and clip each group with clip_grads_with_norm_.",
    ),
    _m(
        r"(_foreach_|_fused_|aten\.(stack|cat)|vector_norm|clip_grad|get_total_norm).*"
        r"mixed torch\.Tensor and DTensor",
        "sharded parameters (DTensors) and plain ones, which no unit covers, meet in "
        "one operation over all of them, as in clipping or in an optimizer's step",
        "Work per kind: group the parameters into sharded and plain ones, take each "
        "group's norm with torch.nn.utils.get_total_norm, combine the norms as plain "
        "tensors, and clip each group with clip_grads_with_norm_; give the optimizer "
        "two groups, or foreach=False.",
    ),
    _m(
        r"mixed torch\.Tensor and DTensor",
        "sharded parameters (DTensors) met plain tensors: a method other than forward, "
        "or a parent, used them outside their unit's forward (FD504)",
        "Call the module itself, register the method with "
        "register_fsdp_forward_method, or shard the weight with the module that reads "
        "it.",
    ),
    _m(
        r"inference tensor",
        "a tensor made under torch.inference_mode is used in a training pass, for "
        "example parameters gathered by an evaluation and still unsharded",
        "Use torch.no_grad in place of torch.inference_mode around evaluation, or call "
        "model.reshard() after it.",
    ),
    _m(
        r"out of ?memory|OutOfMemory|CUBLAS_STATUS_ALLOC_FAILED|MemoryError",
        "the memory ran out",
        "See what holds memory where it ended: reshard after forward, smaller "
        "micro-batches, activation checkpointing, lower reduce dtypes; "
        "fsdpdoctor plan says what fits.",
    ),
    _m(
        r"\bnan\b|not finite|non-?finite|\binf\b|loss (is|was) inf",
        "a number of the training stopped being finite",
        "Look at the loss, the data and the learning rate of the steps before; "
        "decide on every rank alike (all-reduce the flag), so that none skips alone.",
    ),
    _m(
        r"index out of range in self|indexSelect|srcIndex < srcSelectDimSize",
        "an index is not below the rows of an embedding table",
        "Compare the largest token id with num_embeddings, and the tokenizer with the "
        "model's vocabulary.",
    ),
    _m(
        r"setStorage|out of bounds for storage|invalid storage|data pointer.*non-zero",
        "a parameter was used after its unit had been resharded: a view or an in-place "
        "change of an output lost the unit's backward hook, or its root was resharded",
        "Clone outputs that are changed in place, and call units through the root's "
        "forward.",
    ),
    _m(
        r"shared param|same parameter.*(twice|two)|already (been )?(sharded|managed)",
        "one parameter belongs to two units",
        "Apply fully_shard to one module that holds both users of the parameter.",
    ),
    _m(
        r"device-side assert|illegal memory access|CUDA error",
        "a kernel failed on the device, some time before this line",
        "Run again with CUDA_LAUNCH_BLOCKING=1 to see the line that launched it.",
    ),
    _m(
        r"No space left|Errno 28|quota exceeded",
        "a disk is full",
        "Free space where checkpoints, caches and shared memory go.",
    ),
    _m(
        r"Missing key|Unexpected key|size mismatch for",
        "a checkpoint does not fit the model",
        "Load it with the same sharding and names as it was saved, or through "
        "torch.distributed.checkpoint.state_dict.",
    ),
    _m(
        r"Caught \w+ in DataLoader worker process",
        "the dataset's own code failed in a worker",
        "Mend what the message ends with; the worker's whole traceback is on stderr.",
    ),
    _m(
        r"DataLoader worker|worker.*(killed|exited)|Bus error.*shm",
        "a data loader's worker died",
        "Look at its own traceback; fewer workers, or more shared memory (--shm-size).",
    ),
    _m(
        r"same device|Expected all tensors to be on",
        "tensors are on different devices",
        "Move the batch to the model's device, and build modules under it.",
    ),
    _m(
        r"shapes? cannot be multiplied|size of tensor|must match the size|expected "
        r"input.*(size|shape)",
        "shapes do not fit",
        "Print the shapes of the batch at this line; the last batch of a dataset is "
        "often smaller.",
    ),
)

_UNKNOWN = Meaning(
    means="",
    change="Read the traceback at this line.",
)


def meaning_of(exception: str, message: str) -> Meaning:
    """The meaning of an exception; an empty one where it is not known here."""
    text = f"{exception}: {message}"
    # Compiled as they are asked: most runs end without an exception.
    fits = (m for pattern, m in _KNOWN if re.search(pattern, text, re.IGNORECASE))
    return next(fits, _UNKNOWN)


def known_phrases() -> tuple[re.Pattern[str], ...]:
    """What exceptions are known by."""
    return tuple(re.compile(pattern, re.IGNORECASE) for pattern, _ in _KNOWN)
