"""What one step held in memory, by what it was for and whose it was."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fsdpdoctor.schema.absent import UNKNOWN


class Bucket(StrEnum):
    """What memory was for."""

    SHARDED_PARAMETERS = "sharded_parameters"
    POST_FORWARD_SHARDS = "post_forward_shards"  # of a number for
    # `reshard_after_forward`: what stays of a unit between its passes
    GATHERED_PARAMETERS = "gathered_parameters"
    GATHER_OUTPUTS = "gather_outputs"  # of all-gathers, until they are copied out
    REDUCE_INPUTS = "reduce_inputs"  # of reduce-scatters, and what they are made of
    GRADIENTS = "gradients"  # of shards, and of parameters that no unit covers
    UNSHARDED_GRADIENTS = "unsharded_gradients"  # not reduced yet
    OPTIMIZER_STATES = "optimizer_states"
    ACTIVATIONS = "activations"  # made in forward, or in recomputation
    BACKWARD = "backward"  # other gradients, and temporaries of backward
    OPTIMIZER = "optimizer"  # temporaries of the optimizer's step and of clipping
    BUFFERS = "buffers"
    OUTSIDE_PARAMETERS = "outside_parameters"  # that no unit covers
    OTHER = "other"  # the script's own: inputs, what was there before


BUCKETS = tuple(Bucket)
"""In the order of `MemoryMoment.bytes`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryShare:
    """A part of what was held."""

    bucket: str
    unit: int = UNKNOWN  # UNKNOWN: of none
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitMemory:
    """A unit's part in the step. UNKNOWN of a pass that it did not run."""

    unit: int
    forward_peak_bytes: int = UNKNOWN  # held by all while its forward was innermost
    backward_peak_bytes: int = UNKNOWN
    activation_bytes: int = UNKNOWN  # its own, kept as its forward ended; the most


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryMoment:
    """What was held where something of a unit began or ended."""

    time_ns: int  # on the host's clock
    unit: int = UNKNOWN
    phase: int = 0  # a Phase
    event: str  # what had just happened
    bytes: tuple[int, ...] = ()  # by bucket, in the order of BUCKETS


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryStep:
    """The one step whose storages were counted."""

    step: int
    refused: str | None = None  # why it was not counted, and then nothing else is said
    slowed: bool = True  # counting took time of the step's own
    flops: int = UNKNOWN  # of products, convolutions and attention, recomputed ones too
    recomputed_flops: int = UNKNOWN  # of them
    peak_bytes: int = UNKNOWN
    peak_time_ns: int | None = None  # on the host's clock
    peak_unit: int = UNKNOWN
    peak_phase: int = 0
    peak: tuple[MemoryShare, ...] = ()  # its parts, largest first
    units: tuple[UnitMemory, ...] = ()
    moments: tuple[MemoryMoment, ...] = ()
    moments_left_out: int = 0
