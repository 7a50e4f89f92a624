"""The peak of the counted step, and how the run began, in a line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from fsdpdoctor.quantities import duration, size
from fsdpdoctor.renderers.formatting import unit_name, visible
from fsdpdoctor.renderers.reading.unit_names import names_in
from fsdpdoctor.report.memory import MemoryRow
from fsdpdoctor.report.start import StartRow
from fsdpdoctor.report.value import Report

MOST_PARTS = 5
"""Named of a peak; what is smaller is in the other formats."""

BUCKET_WORDS = {
    "post_forward_shards": "shards kept after forward",
    "gather_outputs": "all-gather outputs",
    "reduce_inputs": "reduce-scatter inputs",
    "backward": "temporaries of backward",
    "optimizer": "temporaries of the optimizer",
    "outside_parameters": "parameters outside units",
    "other": "the script's own",
}
"""The buckets whose own name is not the word for them."""


START_WORDS = {
    "import": "imports",
    "init": "process group",
    "first_step": "first step",
    "other": "else",
}
"""The parts of a start whose own name is not the word for them."""


def memory_lines(
    memory: MemoryRow | None, named: Callable[[str], str] = unit_name
) -> Iterator[str]:
    """Where the most was held, and what it was; `named` says a unit's name."""
    if memory is None:
        return
    if memory.not_counted is not None or memory.peak_bytes is None:
        yield f"memory by unit was not counted: {visible(memory.not_counted or '')}"
        return
    parts: Counter[str] = Counter()
    for part in memory.parts:
        parts[part.bucket] += part.bytes
    held = ", ".join(
        f"{bucket_words(bucket)} {size(count)}"
        for bucket, count in parts.most_common(MOST_PARTS)
    )
    where = f"step {memory.step}"
    if memory.ranks > 1:
        where += f", rank {memory.rank}, which held most"
    place = _place(memory, named)
    yield f"memory: at most {size(memory.peak_bytes)}, {place} ({where}): {held}"


def start_and_memory(report: Report) -> Iterator[str]:
    """How the run began, and the most that it held."""
    yield from start_lines(report.start)
    yield from memory_lines(report.memory, names_in(report))


def start_lines(start: StartRow | None) -> Iterator[str]:
    """What the time to the first step went to, largest first."""
    if start is None:
        return
    parts = {
        name: getattr(start, f"{name}_ns")
        for name in (*START_WORDS, "mesh", "wrap", "load", "compile")
    }
    said = [
        f"{START_WORDS.get(name, name)} {duration(ns)}"
        for name, ns in sorted(parts.items(), key=lambda one: -one[1])
        if ns
    ]
    whole = duration(start.total_ns)
    yield f"start: {whole} to the first step's end: {', '.join(said)}"


def _place(memory: MemoryRow, named: Callable[[str], str]) -> str:
    """What ran at the peak."""
    if memory.peak_phase == "optimizer":
        return "in the optimizer"
    if memory.peak_unit is None:
        return f"in {memory.peak_phase}, outside every unit"
    return f"in {memory.peak_phase} of {named(memory.peak_unit)}"


def bucket_words(bucket: str) -> str:
    """What memory was for."""
    return BUCKET_WORDS.get(bucket, visible(bucket.replace("_", " ")))
