"""What spans are of: the members of `schema.Kind`, as a hook uses them.

An attribute of a module takes a tenth of the time that a member of an enumeration
takes to be found in its class; a recorded step asks for some fifty in each unit.
"""

from __future__ import annotations

from typing import Final

from fsdpdoctor.schema import Kind

FORWARD: Final = Kind.FORWARD
BACKWARD: Final = Kind.BACKWARD
ALL_GATHER_WAIT: Final = Kind.ALL_GATHER_WAIT
COPY_OUT: Final = Kind.COPY_OUT
REDUCE_COPY_IN: Final = Kind.REDUCE_COPY_IN
REDUCE_SCATTER_WAIT: Final = Kind.REDUCE_SCATTER_WAIT
ALL_REDUCE_WAIT: Final = Kind.ALL_REDUCE_WAIT
OPTIMIZER: Final = Kind.OPTIMIZER
CLIP: Final = Kind.CLIP
COLLECTIVE_WAIT: Final = Kind.COLLECTIVE_WAIT
ROOT_FORWARD: Final = Kind.ROOT_FORWARD
COPY_IN: Final = Kind.COPY_IN
ALL_GATHER: Final = Kind.ALL_GATHER
REDUCE_SCATTER: Final = Kind.REDUCE_SCATTER
ALL_REDUCE: Final = Kind.ALL_REDUCE
COLLECTIVE: Final = Kind.COLLECTIVE
HOOK: Final = Kind.HOOK
UNSHARD: Final = Kind.UNSHARD
RESHARD: Final = Kind.RESHARD
SYNC: Final = Kind.SYNC
GC: Final = Kind.GC
INPUT: Final = Kind.INPUT
CHECKPOINT_SAVE: Final = Kind.CHECKPOINT_SAVE
CHECKPOINT_LOAD: Final = Kind.CHECKPOINT_LOAD
MICRO_BATCH: Final = Kind.MICRO_BATCH
REDUCE: Final = Kind.REDUCE
UNSHARDED: Final = Kind.UNSHARDED
