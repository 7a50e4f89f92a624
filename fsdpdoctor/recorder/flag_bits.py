"""`schema.Flag` as plain integers: combining its members costs microseconds each
time, in hooks that run a dozen times per unit and step.
"""

from __future__ import annotations

from typing import Final

from fsdpdoctor.schema import Flag

NONE: Final = int(Flag.NONE)
FORWARD_PREFETCH: Final = int(Flag.FORWARD_PREFETCH)
BACKWARD_PREFETCH: Final = int(Flag.BACKWARD_PREFETCH)
RECOMPUTE: Final = int(Flag.RECOMPUTE)
NO_GRAD: Final = int(Flag.NO_GRAD)
BLOCKING: Final = int(Flag.BLOCKING)
ASYNC_OP: Final = int(Flag.ASYNC_OP)
NEVER_USED: Final = int(Flag.NEVER_USED)
FIRST: Final = int(Flag.FIRST)
MANUAL: Final = int(Flag.MANUAL)
END_ESTIMATED: Final = int(Flag.END_ESTIMATED)
ABORTED: Final = int(Flag.ABORTED)
BACKGROUND: Final = int(Flag.BACKGROUND)
