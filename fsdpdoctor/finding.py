"""Finding: one problem, what it costs and what shows it. NotJudged: no answer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum

import msgspec

from fsdpdoctor.schema import Evidence

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]
"""What evidence may hold: JSON's own types."""


class Severity(IntEnum):
    """How much a finding matters. JSON has the name in lower case."""

    INFO = 0
    WARNING = 1
    CRITICAL = 2


class Confidence(StrEnum):
    """How surely the evidence proves the finding."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where a finding can be seen: one stretch of one rank's step."""

    rank: int
    step: int
    start_ns: int  # on that rank's clock
    end_ns: int
    unit: str | None = None


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One change that answers a finding."""

    text: str
    code: str | None = None  # runs as pasted, with the user's own names
    memory_cost_bytes: int | None = None  # of the peak on each rank; negative: saves
    predicted_gain_ns: int | None = None  # per step, simulated; None: not predicted
    predicted_error_ns: int | None = None  # of the gain, to either side
    change: Mapping[str, object] | None = None  # what it changes, as fields of
    # `changes.plan.Plan`; None: nothing that can be simulated


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One problem on some units, ranks and steps.

    A detector leaves out its own code and name; `judge` fills them in, and all ranks
    where it names none. It gives a name of its own where the detector's would name
    what did not run.
    """

    code: str = ""  # "FD101"
    name: str = ""  # "exposed-all-gather"
    severity: Severity
    confidence: Confidence
    summary: str  # one sentence with its figures
    units: tuple[str, ...] = ()
    phase: str | None = None  # "forward", "backward"; None: both or neither
    ranks: tuple[int, ...] = ()
    cost_ns_per_step: int | None = None  # None: not measured
    cost_bytes: int | None = None
    evidence: Mapping[str, Value] = msgspec.field(default_factory=dict)
    advice: tuple[Advice, ...] = ()
    places: tuple[Location, ...] = ()  # worst first, a handful


class NotJudged(msgspec.Struct, frozen=True, kw_only=True):
    """A detector that lacked its input, and which: never the same as clear."""

    code: str
    name: str
    needs: tuple[Evidence, ...]
    reason: str
