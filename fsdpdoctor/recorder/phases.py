"""What spans are for: the members of `schema.Phase`, as a hook uses them.

An attribute of a module takes a tenth of the time that a member of an enumeration
takes to be found in its class; a recorded step asks for some fifty in each unit.
"""

from __future__ import annotations

from typing import Final

from fsdpdoctor.schema import Phase

OTHER: Final = Phase.OTHER
FORWARD: Final = Phase.FORWARD
BACKWARD: Final = Phase.BACKWARD
OPTIMIZER: Final = Phase.OPTIMIZER
