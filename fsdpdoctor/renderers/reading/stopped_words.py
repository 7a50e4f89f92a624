"""Ranks that did not end, and the last that was seen of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fsdpdoctor.renderers.formatting import ranges
from fsdpdoctor.renderers.reading.unit_names import names_in
from fsdpdoctor.report.value import Report, StoppedRank


def rank_words(numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-7, 9`."""
    return f"rank{'s' * (len(numbers) != 1)} {ranges(numbers)}"


def stopped_lines(report: Report) -> Iterator[str]:
    """Which ranks did not end, and the last they were seen doing; alike ones once."""
    named = names_in(report)
    alike: dict[str, list[int]] = {}
    for row in report.health.stopped:
        alike.setdefault(_last_seen(row, named), []).append(row.rank)
    for words, ranks in alike.items():
        yield f"{rank_words(ranks)} {words}"


_WITHOUT_A_WORD = {
    None: "did not end (killed, or still running)",
    True: "did not end (still running)",
    False: "ended without a word (killed, or by os._exit)",
}


def _last_seen(stopped: StoppedRank, named: Callable[[str], str]) -> str:
    how = f"ended by {stopped.ended}"
    if stopped.ended == "running":
        how = _WITHOUT_A_WORD[stopped.alive]
    if stopped.step is None:
        return f"{how}, before the first step"
    seen = f"{how}; last seen in step {stopped.step}"
    if stopped.micro_batch:
        seen += f", micro-batch {stopped.micro_batch}"
    if stopped.doing is not None:
        seen += f": {stopped.doing}"
        seen += f" of {named(stopped.unit)}" if stopped.unit is not None else ""
    elif stopped.unit is not None:
        seen += f": in {named(stopped.unit)}"
    if stopped.phase is not None and stopped.phase != stopped.doing:
        seen += f", {stopped.phase}"
    if stopped.seq is not None:
        group = f" of group {stopped.group}" if stopped.group else ""
        seen += f", collective {stopped.seq}{group}"
    return seen
