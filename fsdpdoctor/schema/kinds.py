"""What a span was: its kind, its lane, its phase and its flags."""

from __future__ import annotations

from enum import IntEnum, IntFlag

import numpy as np
import numpy.typing as npt


class _Named(IntEnum):
    @property
    def key(self) -> str:
        """Its name in JSON: `all_gather`."""
        return self.name.lower()

    @property
    def label(self) -> str:
        """Its name in a text: `all-gather`."""
        return self.key.replace("_", "-")


class Lane(_Named):
    """Where a span ran."""

    HOST = 0
    COMPUTE = 1  # the stream that runs forward and backward; on CPU the thread
    COPY_IN = 2  # the all-gather copy-in stream
    ALL_GATHER = 3
    REDUCE_SCATTER = 4
    ALL_REDUCE = 5
    COPY = 6  # memcpy and memset outside every unit
    OTHER_COMM = 7  # collectives that are not FSDP2's: tensor, pipeline, expert
    UNSHARDED = 8  # not work: a unit's unshard window


class Phase(_Named):
    """What a span was for. An all-gather belongs to the phase that needs it."""

    OTHER = 0
    FORWARD = 1
    BACKWARD = 2
    OPTIMIZER = 3


class Kind(_Named):
    """What a span did, in FSDP2's and the profiler's words."""

    # Lane.COMPUTE
    FORWARD = 1  # a unit's forward, children included
    BACKWARD = 2  # a unit's backward, from its pre- to its post-backward
    ALL_GATHER_WAIT = 3  # compute stood still until the unit's all-gather was done
    COPY_OUT = 4
    REDUCE_COPY_IN = 5  # gradients into the reduce-scatter input
    REDUCE_SCATTER_WAIT = (
        6  # stood still for a reduce-scatter; unit: the one waited for
    )
    ALL_REDUCE_WAIT = 7
    OPTIMIZER = 8
    CLIP = 9  # gradient clipping
    KERNEL = 10  # device work that is not communication; only traces know it
    COLLECTIVE_WAIT = 11  # stood still for a collective that is not FSDP2's
    ROOT_FORWARD = 12  # a root's forward, whole; `value`: length of its input
    # Lane.COPY_IN, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE, OTHER_COMM
    COPY_IN = 20
    ALL_GATHER = 21
    REDUCE_SCATTER = 22
    ALL_REDUCE = 23
    COLLECTIVE = 24  # any other; `name` says which
    # Lane.COPY
    MEMCPY = 30
    MEMSET = 31
    # Lane.HOST
    HOOK = 40  # inside one of FSDP2's own hooks or calls, on the host
    UNSHARD = 41  # the host's call that issued an all-gather
    RESHARD = 42  # the host's call that freed a unit; phase: after which pass
    SYNC = 43  # a call that made the host wait for the device; `name`: file:line
    GC = 44  # a garbage collection; `value`: its generation
    INPUT = 45  # waiting in the data loader
    CHECKPOINT_SAVE = 46
    CHECKPOINT_LOAD = 47
    MICRO_BATCH = 48  # a root's forward start to the end of its backward
    LAUNCH = 49  # a device launch call; only traces know it
    REDUCE = 50  # the host's call that issued a reduce-scatter (and all-reduce)
    # Lane.UNSHARDED
    UNSHARDED = 60  # copy-out done to reshard; `bytes`: what the unit held


COLLECTIVE_KINDS = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
"""FSDP2's own collectives, in the order of reports."""

WAIT_OF: dict[Kind, Kind] = {
    Kind.ALL_GATHER: Kind.ALL_GATHER_WAIT,
    Kind.REDUCE_SCATTER: Kind.REDUCE_SCATTER_WAIT,
    Kind.ALL_REDUCE: Kind.ALL_REDUCE_WAIT,
}
"""In what compute stands still for each of them."""

COMMUNICATION_LANES = (
    Lane.ALL_GATHER,
    Lane.REDUCE_SCATTER,
    Lane.ALL_REDUCE,
    Lane.OTHER_COMM,
)

DEVICE_WORK = (Kind.KERNEL, Kind.COPY_IN, Kind.COPY_OUT, Kind.REDUCE_COPY_IN)
"""What a trace shows of compute: every kernel that is no communication. Memcpy and
memset are not compute."""


def is_any(column: npt.NDArray[np.int8], *values: int) -> npt.NDArray[np.bool_]:
    """Where a column of kinds, lanes or phases has one of some values."""
    found = np.zeros(len(column), dtype=np.bool_)
    for value in values:  # as compared bytes: an index would be eight times as large
        found |= column == int(value)  # numpy looks an enum up for each comparison
    return found


class Within(_Named):
    """What a collective that is not FSDP2's ran in."""

    SCRIPT = 0  # nothing of the others
    UNIT = 1  # a unit's forward or backward: another parallelism, a layer's own
    OPTIMIZER = 2
    CLIP = 3
    LOADER = 4
    CHECKPOINT = 5


class Activity(_Named):
    """What the training thread was seen doing outside all spans."""

    USER = 0  # the script's own code
    INPUT = 1
    LOGGING = 2
    SLEEP = 3
    SYNC = 4  # a call that waits for the device, or reads from it
    CHECKPOINT = 5
    COMPILE = 6
    COLLECTIVE = 7
    EDGE = 8  # no sample: where a pass or an optimizer step began or ended


class Flag(IntFlag):
    """What else is known of a span."""

    NONE = 0
    FORWARD_PREFETCH = 1  # issued by another unit's explicit forward prefetch
    BACKWARD_PREFETCH = 2  # issued by another unit's pre-backward
    RECOMPUTE = 4  # FORWARD state while autograd ran: activation recomputation
    NO_GRAD = 8  # a forward without gradients: evaluation, generation
    BLOCKING = 16  # the host itself stood still inside the collective call
    ASYNC_OP = 32  # the host got a work handle and waited on that
    NEVER_USED = 64  # unsharded, and freed without a forward or backward of its unit
    FIRST = 128  # first all-gather of its step: nothing to hide under
    MANUAL = 256  # unshard() called by the user's own code
    END_ESTIMATED = 512  # the collective's end is not seen: at latest the span's end
    ABORTED = 1024  # an exception ended it
    BY_ORDER = 2048  # its unit is told from sizes and order: no label said it
    BACKGROUND = 4096  # on another thread than the training's: nobody stood still
    EVAL = 8192  # of a root's forward: its module was in evaluation mode
