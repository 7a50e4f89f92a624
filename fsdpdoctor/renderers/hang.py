"""Who a hung job waits for: on the terminal and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from fsdpdoctor.hang.diagnose import Culprit, Diagnosis, Operation, Why
from fsdpdoctor.hang.match_units import MatchedBy, UnitMatch
from fsdpdoctor.quantities import count
from fsdpdoctor.renderers.formatting import ranges, units, visible
from fsdpdoctor.storage.json_text import json_text

HANG_SCHEMA_VERSION = 1
"""Of the JSON."""

MOST_LINES = 32
"""Operations shown at which ranks stand; --json has them all."""

WHAT_IT_DID = {
    Why.NEVER_JOINED: "never enqueued",
    Why.BEHIND: "enqueued, and did not finish,",
    Why.MISMATCH: "enqueued, where others have another collective,",
}

NOTHING_PENDING = (
    "no rank has anything pending: the job did not hang in a collective, or its dumps "
    "were written before it did"
)

NOT_TOLD = (
    "the dumps do not say who: each rank waits for ranks without a dump, or the "
    "missing operation has left their rings (TORCH_NCCL_TRACE_BUFFER_SIZE)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """What was found, and the units of its operations where a run was given."""

    found: Diagnosis
    units: Mapping[Operation, UnitMatch] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # files that could not be read, and why
    notes: tuple[str, ...] = ()


def show_hang(hang: Hang, console: Console) -> None:
    """Print who holds up whom, then where every rank stands."""
    for line, style in _lines(hang):
        console.print(Text(visible(line), style=style), soft_wrap=True)


def _lines(hang: Hang) -> Iterator[tuple[str, str]]:
    found = hang.found
    yield from _headline(found)
    for culprit in found.culprits:
        yield _culprit(culprit, hang), "bold"
        if culprit.waiting:
            yield f"  waiting for it: {_ranks(culprit.waiting)}", ""
    for operation in found.stuck:
        yield (
            f"every member is in {_operation(operation, hang)}, and it does not end",
            "",
        )
        yield "  look at the network and the devices of these ranks", "dim"
    if found.in_a_circle:
        yield f"{_ranks(found.in_a_circle)} wait for each other, in a circle", "bold"
    for mismatch in found.mismatches[:1]:
        yield f"ranks disagree on #{mismatch.seq} of group {mismatch.group}:", ""
        for what, ranks in mismatch.versions.items():
            yield f"  {_ranks(ranks)}: {what}", ""
        if len(found.mismatches) > 1:
            yield f"  and {len(found.mismatches) - 1} later, see --json", "dim"
    yield from _standing(hang)
    if found.without_dump:
        yield f"no dump of {_ranks(found.without_dump)}", "yellow"
    for sentence in (*hang.left_out, *hang.notes):
        yield f"note: {sentence}", "yellow"


def _headline(found: Diagnosis) -> Iterator[tuple[str, str]]:
    pending = len(found.standing_at)
    left = f"{count(len(found.ranks), 'rank')} left a dump"
    yield f"{left}, {pending} of them with collectives pending", ""
    if not pending:
        yield NOTHING_PENDING, ""
    elif not (found.culprits or found.stuck or found.in_a_circle):
        yield NOT_TOLD, "yellow"


def _culprit(culprit: Culprit, hang: Hang) -> str:
    what = "" if culprit.operation is None else _operation(culprit.operation, hang)
    return f"rank {culprit.rank} {WHAT_IT_DID[culprit.why]} {what}".rstrip(" ,")


def _operation(operation: Operation, hang: Hang) -> str:
    unit = hang.units.get(operation)
    of = "" if unit is None else f" of {_unit(unit)}"
    members = f" ({_ranks(operation.members)})" if operation.members else ""
    return f"{operation.name} #{operation.seq}{of} in group {operation.group}{members}"


def _unit(match: UnitMatch) -> str:
    phases = " or ".join(match.phases)
    if len(match.units) == 1:
        return f"{units(match.units)}, {phases} (by {match.by})"
    return f"one of {units(match.units)} (by {match.by})"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'' if len(ranks) == 1 else 's'} {ranges(ranks)}"


def _standing(hang: Hang) -> Iterator[tuple[str, str]]:
    """Where ranks stand, those at one operation together."""
    at: dict[Operation, list[int]] = {}
    for rank, operation in hang.found.standing_at.items():
        at.setdefault(operation, []).append(rank)
    if at:
        yield "oldest pending operation of each rank:", ""
    for operation, ranks in list(at.items())[:MOST_LINES]:
        yield f"  {_ranks(ranks)}: {_operation(operation, hang)}", "dim"
    if len(at) > MOST_LINES:
        yield (
            f"  and {count(len(at) - MOST_LINES, 'more operation')}, see --json",
            "dim",
        )


def encode_hang(hang: Hang) -> str:
    """The same as JSON."""
    found = hang.found
    of = _encoder(hang.units)
    said = {
        "schema_version": HANG_SCHEMA_VERSION,
        "ranks": found.ranks,
        "without_dump": found.without_dump,
        "left_out": hang.left_out,
        "culprits": [
            {
                "rank": one.rank,
                "why": one.why,
                "operation": None if one.operation is None else of(one.operation),
                "waiting": one.waiting,
            }
            for one in found.culprits
        ],
        "stuck": [of(operation) for operation in found.stuck],
        "in_a_circle": found.in_a_circle,
        "mismatches": found.mismatches,
        "standing_at": {str(r): of(op) for r, op in found.standing_at.items()},
        "notes": hang.notes,
    }
    return json_text(said)


def _encoder(
    matches: Mapping[Operation, UnitMatch],
) -> Callable[[Operation], dict[str, object]]:
    def encode(operation: Operation) -> dict[str, object]:
        match = matches.get(operation)
        by: MatchedBy | None = None if match is None else match.by
        return {
            "group": operation.group,
            "members": operation.members,
            "seq": operation.seq,
            "name": operation.name,
            "units": None if match is None else match.units,
            "phases": None if match is None else match.phases,
            "matched_by": by,
        }

    return encode
