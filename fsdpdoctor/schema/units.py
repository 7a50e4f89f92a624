"""What the model is made of: units, their parameters, groups, blocks, optimizers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fsdpdoctor.schema.absent import UNKNOWN

ROOT = "<root>"
"""The name of a root unit, whose module FQN is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSpec:
    """One parameter of a unit, as this rank holds it."""

    fqn: str
    shape: tuple[int, ...]
    dtype: str  # without "torch.": "float32"
    trainable: bool
    shard_dim: int
    local_numel: int  # true elements of this rank's shard
    padded_local_numel: int  # the same with padding


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitSpec:
    """One FSDP communication unit: the parameters one `fully_shard` call gathers
    together (`FSDPParamGroup`).
    """

    fqn: str  # ROOT, "layers.0", "norm, output"; "layers.0 [pg=4]" with several groups
    module_class: str  # class before fully_shard renamed it
    tree: int = 0  # index of the root whose tree it is in
    is_root: bool = False
    model: int = 0  # in ModelSpec.models: a process may train several
    numel: int = UNKNOWN
    trainable_numel: int = UNKNOWN
    frozen_numel: int = UNKNOWN
    param_bytes: int = UNKNOWN  # unsharded, in the stored dtype
    unsharded_bytes: int = (
        UNKNOWN  # what a gather brings, in the gathered dtype, padded
    )
    shard_bytes: int = UNKNOWN  # this rank's part, stored dtype, padded
    padding_bytes: int = UNKNOWN  # of unsharded_bytes
    orig_dtype: str | None = None
    param_dtype: str | None = None  # MixedPrecisionPolicy's, None: stored dtype
    reduce_dtype: str | None = None
    gather_dtype: str | None = None  # of the collective; "uint8": mixed
    reshard_after_forward: bool | int | None = None  # as it acts, not as it was asked
    reshard_after_backward: bool | None = None
    unshard_in_backward: bool | None = None
    unshard_async_op: bool | None = None
    requires_gradient_sync: bool | None = None
    requires_all_reduce: bool | None = None
    reduce_scatter_max_input_buffers: int | None = None
    separate_reduce_scatter_group: bool | None = None
    offload: str | None = None  # None: on the device; "cpu", "cpu-pinned"
    forward_prefetch: tuple[int, ...] | None = None  # units, None: not known
    backward_prefetch: tuple[int, ...] | None = None
    shard_group: int = UNKNOWN  # in RankHeader.groups
    replicate_group: int = UNKNOWN  # HSDP
    post_forward_group: int = UNKNOWN  # integer reshard_after_forward
    mesh: str | None = None  # "(replicate=2, shard=4)"
    parent_meshes: tuple[str, ...] = ()  # meshes this mesh was sliced from
    checkpointed: bool | None = None  # its forward was recomputed in backward
    compiled: str | None = None  # "inside": compiled module within; "around"
    params: tuple[ParamSpec, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """One process group."""

    name: str
    ranks: tuple[int, ...]  # global; empty where not known
    size: int
    backend: str | None = None  # "nccl", "gloo", "rccl", "fake", ...
    role: str | None = None  # "shard", "replicate", "post_forward", "world", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpec:
    """A run of sibling modules of one class, as in a ModuleList."""

    container: str  # FQN
    module_class: str
    count: int
    units: int  # how many of them are FSDP units, or hold one per block
    numel: int  # of one block
    model: int = UNKNOWN  # whose it is, as in `UnitSpec`


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSpec:
    """One optimizer as it was at its first step."""

    optimizer_class: str
    params: int  # tensors
    dtensors: int  # of them, DTensors
    stale: int  # of them, not (or no longer) a parameter of the model
    without_grad: int  # of them, without a gradient at the first step
    gathered: int = 0  # of them, what a unit had gathered as the optimizer was built
    foreach: bool | None = None
    fused: bool | None = None


class ReplicaKind(StrEnum):
    """What it is that ranks may have to hold alike."""

    SHARD = "shard"
    OUTSIDE = "outside"  # a parameter that no unit covers
    BUFFER = "buffer"
    OPTIMIZER = "optimizer"  # a learning rate, or a count of steps


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """Samples of one thing that other ranks may have to hold alike."""

    name: str  # FQN; "AdamW group 0: lr"
    kind: ReplicaKind
    trainable: bool = False
    shape: tuple[int, ...] = ()  # on this rank
    shard_index: int = UNKNOWN  # of a shard: which part of the unit this rank has
    steps: tuple[int, ...] = ()  # after which each was taken; UNKNOWN: before the first
    values: tuple[str, ...] = ()  # checksums, or numbers: equal where the state is


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleParentSpec:
    """A sharded module whose forward never ran, though parts of it ran alone."""

    fqn: str  # in the whole model; empty: it is the whole
    module_class: str
    params: int  # tensors that it shards itself
    units: tuple[int, ...]  # that ran inside it


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What wraps the model, beside the units."""

    wrapper: str  # "fsdp2", "fsdp1", "ddp", "none"
    model_class: str | None = None
    numel: int = UNKNOWN  # whole model, unsharded
    trainable_numel: int = UNKNOWN  # of them
    unmanaged_fqns: tuple[str, ...] = ()  # parameters outside every unit; first 50
    unmanaged_params: int = 0
    unmanaged_numel: int = 0
    unmanaged_bytes: int = 0
    unmanaged_trainable: int = 0  # of unmanaged_params
    unmanaged_trainable_numel: int = UNKNOWN
    ignored_params: int = 0  # of unmanaged_params, left out with ignored_params=
    blocks: tuple[BlockSpec, ...] = ()
    tied: tuple[tuple[str, ...], ...] = ()  # FQNs that share one parameter
    checkpoint: str | None = None  # "reentrant", "non_reentrant", None: none seen
    autocast_dtype: str | None = None
    optimizers: tuple[OptimizerSpec, ...] = ()
    forward_order: tuple[int, ...] = ()  # units, as they first ran
    models: tuple[str, ...] = ()  # class of each model with FSDP2 in it
    idle_parents: tuple[IdleParentSpec, ...] = ()
    # The first one with a backward after one that an exception had broken off, of
    # which FSDP2 was not told; UNKNOWN: none.
    broken_off_step: int = UNKNOWN
