"""One recorded step, and the counters it may hold."""

from __future__ import annotations

from dataclasses import dataclass, field

from fsdpdoctor.schema.absent import UNKNOWN
from fsdpdoctor.schema.tables import (
    CallSites,
    Counters,
    MemorySamples,
    Spans,
    StackSamples,
    StepTimes,
    Table,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepRecord:
    """One recorded optimizer step of one rank."""

    step: int  # counted from 0 over the whole run
    start_ns: int  # on the clock of the spans: device time where there is one
    end_ns: int
    host_start_ns: int
    host_end_ns: int
    micro_batches: int  # UNKNOWN where no root forward was seen
    tokens: int = UNKNOWN
    samples: int = UNKNOWN
    recorder_ns: int = 0  # what recording this step cost the host
    complete: bool = True  # False: the run ended inside it
    spans: Spans = field(default_factory=Spans.empty)
    memory: MemorySamples = field(default_factory=MemorySamples.empty)
    counters: Counters = field(default_factory=Counters.empty)
    unrecorded: StepTimes = field(default_factory=StepTimes.empty)
    # the steps since the last recorded one
    call_sites: CallSites = field(default_factory=CallSites.empty)
    stack_samples: StackSamples = field(default_factory=StackSamples.empty)

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def is_rest(self) -> bool:
        """Whether it is no step: times and counters after the last recorded one, which
        have no other place in the stream.
        """
        nothing = self.micro_batches == UNKNOWN and not len(self.spans)
        return nothing and not self.complete and self.host_start_ns == self.host_end_ns


SCALARS = (
    "step",
    "start_ns",
    "end_ns",
    "host_start_ns",
    "host_end_ns",
    "micro_batches",
    "tokens",
    "samples",
    "recorder_ns",
    "complete",
)
"""The int64 columns of a batch, each a field of `StepRecord` (complete: 0 or 1)."""

TABLES: dict[str, type[Table]] = {
    "spans": Spans,
    "memory": MemorySamples,
    "counters": Counters,
    "unrecorded": StepTimes,
    "call_sites": CallSites,
    "stack_samples": StackSamples,
}
"""The list-of-struct columns of a batch, each a field of `StepRecord`."""

NAMES = "names"
"""The column of the names that a step used first; ids count on over the stream."""

# Counters that more than one module names.
COUNTER_ALLOC_RETRIES = "allocator.retries"
COUNTER_OOMS = "allocator.ooms"
COUNTER_GRAPH_BREAKS = "compile.graph_breaks"
COUNTER_RECOMPILES = "compile.recompiles"
COUNTER_COMPILE_NS = "compile.ns"
GRAPH_BREAK_REASON = "compile.graph_break: "  # and dynamo's reason
RECOMPILE_REASON = "compile.recompile: "
COUNTER_PYTHON_OBJECTS = "python.objects"
COUNTER_EXCEPTIONS = "forward.exceptions"
COUNTER_LEFT_OPEN = "forward.left_open"  # FSDP2 is in a forward that raised, still
COUNTER_GRADIENTS_TAKEN = "gradients.taken"  # between two micro-batches
COUNTER_DIRECT_METHODS = "hooks.bypassed"
COUNTER_GATHERED = "tensors.gathered"
