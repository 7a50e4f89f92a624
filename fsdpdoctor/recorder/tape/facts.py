"""What a row of the tape says, by number. The same numbers are in `_tape.c`."""

from __future__ import annotations

from typing import Final

GATHERS: Final = 1
UNSHARDED: Final = 2
BACKWARD: Final = 4
FAILED: Final = 8
PARTIAL: Final = 16
ONE_MODULE: Final = 32
FLAGS: Final = (64, 128, 256)
"""In the order of `unit_state.FLAGS`."""
ASYNC: Final = 512
FORWARD_PREFETCH: Final = 1024
NO_RESULT: Final = 4096
STATE_SHIFT: Final = 16

ROWS: Final = 8
"""So many codes has each hook: of what its call begins and ends with, and of what is
in it."""

BEGINS, ENDS, CALLS, RETURNED, ALLOCATES = range(5)

(
    OF_GROUP,
    OF_PREFETCH,
    OF_GATHER,
    OF_COPY_OUT,
    OF_REDUCE,
    OF_ROOT_FORWARD,
    OF_ROOT_ENDS,
    OF_BACKWARD,
    OF_CAST,
    OF_ROOT_ALONE,
    OF_COUNT,
    OF_METHOD,
) = range(12)
"""What a hook is put around."""
