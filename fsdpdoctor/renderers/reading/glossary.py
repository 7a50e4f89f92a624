"""What the words of a report mean: one list, for `explain` and the dashboard alike."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A word of ours, in one sentence; `also` are other ways to write it."""

    name: str
    meaning: str
    also: tuple[str, ...] = ()


def _term(name: str, meaning: str, *also: str) -> Term:
    return Term(name=name, meaning=meaning, also=also)


TERMS = (
    # What a step is made of.
    _term(
        "step",
        "One iteration of training, to the end of its optimizer's step.",
        "steps",
        "mean step",
        "median step",
        "step ms",
    ),
    _term(
        "judged step",
        "A recorded step that counts: not warm-up, not an outlier, not cut off.",
        "judged steps",
    ),
    _term(
        "micro-batch",
        "One backward pass within a step, and the forwards before it.",
        "micro-batches",
    ),
    _term(
        "per step",
        "The mean over the judged steps of all ranks, so that parts add up.",
    ),
    _term(
        "step budget",
        "The mean step's time, each stretch given to one part: the parts add up to it.",
        "budget",
    ),
    _term(
        "floor",
        "The mean step without anything that is only lost: what is exposed, paused or "
        "not explained. No change of settings goes below it.",
        "cannot go below",
    ),
    _term(
        "other compute",
        "Work of the model that belongs to no forward, backward or optimizer: the "
        "loss, kernels without a label.",
    ),
    _term(
        "the script's own lines",
        "Time outside all that is recorded, in which the training thread was seen in "
        "lines of the script.",
    ),
    _term("not explained", "Time of the step in which nothing recorded ran."),
    _term(
        "waiting for the host",
        "The device stood idle until the CPU launched the next kernel.",
    ),
    _term(
        "copy-in and copy-out",
        "Parameters are copied into a collective's buffer, and out of it.",
        "copy-in",
        "copy-out",
    ),
    _term(
        "recomputation",
        "Forward run again in backward, as activation checkpointing asks.",
        "recompute",
    ),
    _term(
        "passes without gradients",
        "Forwards under no_grad, as an evaluation's: gathers without a backward.",
    ),
    # FSDP2.
    _term(
        "unit",
        "What one fully_shard call gathers together: a module's parameters, less those "
        "of units inside it.",
        "units",
        "units of",
    ),
    _term(
        "all-gather",
        "Each rank gets the whole of a unit's parameters from the shards of all.",
        "all-gathers",
        "gathers",
        "by all-gathers",
    ),
    _term(
        "reduce-scatter",
        "Gradients of all ranks are added up, and each rank keeps its shard.",
        "reduce-scatters",
        "RS",
        "by reduce-scatters",
    ),
    _term(
        "all-reduce",
        "Gradients of all ranks are added up, and each rank keeps the whole.",
        "all-reduces",
    ),
    _term(
        "unsharded",
        "Gathered: the rank holds the whole of a unit's parameters, from its "
        "all-gather until it is resharded.",
        "time unsharded",
        "unsh ms",
        "unsharded parameters",
    ),
    _term(
        "reshard",
        "To free the gathered parameters again; those that are resharded after forward "
        "are gathered once more in backward.",
        "reshard after forward",
    ),
    _term(
        "prefetch",
        "To gather the next unit while this one computes.",
        "forward prefetch",
        "backward prefetch",
    ),
    _term(
        "outside FSDP2",
        "Collectives that the script, or another library, called itself.",
    ),
    # What is lost, and why.
    _term(
        "exposed",
        "Compute stood still for a collective: time that hiding it would win back.",
        "exposed time",
        "exposed share",
        "exposed per step",
        "exposed in forward",
        "exposed in backward",
        "exp ms",
        "exp fwd",
        "exp bwd",
        "exposed ms",
    ),
    _term(
        "overlap",
        "The share of communication's time that ran while compute did.",
        "overlapped",
    ),
    _term(
        "host late",
        "A cause of exposed time: the CPU had not issued the collective yet.",
        "host-late",
    ),
    _term(
        "queued",
        "A cause of exposed time: issued, and its lane was busy with another one.",
    ),
    _term(
        "straggler",
        "A cause of exposed time: the last rank had not arrived.",
    ),
    _term("wire", "A cause of exposed time: bytes were moving."),
    _term(
        "tail",
        "A cause of exposed time: the collective was done, and compute not yet going.",
    ),
    _term(
        "straggler or wire",
        "A late rank or moving bytes: ranks could not be matched, so these two cannot "
        "be told apart.",
        "wire or straggler",
    ),
    _term(
        "main cause",
        "What most of the exposed time waited for.",
    ),
    # Ranks.
    _term(
        "waits per step",
        "Time in collectives, busy or not, in which the last rank had not arrived.",
        "waits ms",
    ),
    _term(
        "waiting caused per step, of all others",
        "What all other ranks waited for this one to arrive: the sum of all, which may "
        "be more than a step.",
        "makes wait ms",
        "waiting caused",
    ),
    _term(
        "times last",
        "How many collectives of the judged steps this rank arrived at last.",
        "last",
    ),
    _term(
        "clock offset",
        "What to add to this rank's clock to have the first rank's.",
        "clock off",
    ),
    _term(
        "clock residual",
        "How far ranks' clocks may still be apart after they were aligned: arrivals "
        "closer than that name no straggler.",
        "residual",
        "largest residual",
    ),
    # Collectives.
    _term(
        "bus bandwidth",
        "Bytes by time, corrected for the number of ranks: what a link has to carry, "
        "to be held against its peak.",
        "busbw",
        "busbw GB/s",
        "busbw on the wire",
    ),
    _term(
        "median on the wire",
        "From the last rank's arrival to the end: without the wait for it.",
        "wire ms",
        "on the wire",
    ),
    _term(
        "fitted line",
        "A time for any size plus bytes by a bandwidth, through the times on the wire.",
        "fitted peak",
    ),
    # Predictions.
    _term(
        "replay",
        "The simulator's step with nothing changed: how far it is from the measured "
        "one says how far predictions can be trusted.",
        "replay error",
    ),
    _term(
        "predicted gain",
        "What the simulated step loses with a change, against the same step without.",
        "gain",
        "gain per step",
    ),
    _term(
        "memory per rank",
        "What a change adds to a rank's peak at most.",
    ),
)

_BY_NAME = {name.lower(): term for term in TERMS for name in (term.name, *term.also)}

_HEADS = frozenset(
    ("step", "steps", "step ms", "budget", "units of", "gathers", "rs", "last", "gain")
)
"""Terms as the head of a column; in a sentence they may be plain words."""

_ANY = re.compile(
    r"(?<![\w-])("
    + "|".join(
        re.escape(name)
        for name in sorted(_BY_NAME.keys() - _HEADS, key=lambda n: (-len(n), n))
    )
    + r")(?![\w-])",
    re.IGNORECASE,
)


def term_of(words: str) -> Term | None:
    """The term that some words are, or None."""
    return _BY_NAME.get(words.strip().lower())


def split_terms(words: str) -> list[str | tuple[str, Term]]:
    """Words in pieces: those that are a term, the first time, with what it means."""
    pieces: list[str | tuple[str, Term]] = []
    seen: set[str] = set()
    end = 0
    for found in _ANY.finditer(words):
        term = _BY_NAME[found[0].lower()]
        if term.name in seen:
            continue
        seen.add(term.name)
        if found.start() > end:
            pieces.append(words[end : found.start()])
        pieces.append((found[0], term))
        end = found.end()
    if end < len(words):
        pieces.append(words[end:])
    return pieces
