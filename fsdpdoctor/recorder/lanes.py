"""Where spans lie: the members of `schema.Lane`, as a hook uses them.

An attribute of a module takes a tenth of the time that a member of an enumeration
takes to be found in its class; a recorded step asks for some fifty in each unit.
"""

from __future__ import annotations

from typing import Final

from fsdpdoctor.schema import Lane

HOST: Final = Lane.HOST
COMPUTE: Final = Lane.COMPUTE
COPY_IN: Final = Lane.COPY_IN
ALL_GATHER: Final = Lane.ALL_GATHER
REDUCE_SCATTER: Final = Lane.REDUCE_SCATTER
ALL_REDUCE: Final = Lane.ALL_REDUCE
OTHER_COMM: Final = Lane.OTHER_COMM
UNSHARDED: Final = Lane.UNSHARDED
