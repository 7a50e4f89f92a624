"""The grammar of FSDP2's `FSDP::` labels, as torch 2.6 to 2.13 write them.

FSDP::all_gather                      the root's group: no suffix
FSDP::all_gather (layers.0)           a unit
FSDP::all_gather (norm, output)       one unit of grouped modules
FSDP::all_gather (layers.0) [pg=4]    one of several groups of a module
FSDP::post_backward_rs_wait ()        this label prints the root's empty name
FSDP::forward_prefetch for layers.1   no parentheses, no [pg=...]
FSDP::root_pre_forward                of the state, not of a group
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fsdpdoctor.schema import ROOT, Hook

PREFIX = "FSDP::"


PREFETCHES = (Hook.FORWARD_PREFETCH, Hook.BACKWARD_PREFETCH)

OF_STATE = (
    Hook.ROOT_PRE_FORWARD,
    Hook.INPUTS_TO_DEVICE,
    Hook.CAST_FORWARD_INPUTS,
    Hook.CAST_FORWARD_OUTPUTS,
    Hook.ROOT_POST_BACKWARD_CALLBACK,
)
"""Labels that name no unit."""

_LABELS = frozenset(Hook) - {Hook.POST_BACKWARD}  # which only its parts label
_GRAMMAR = re.compile(
    r"FSDP::(?P<label>\w+)"
    r"(?: \((?P<fqn>.*?)\))?"
    r"(?: for (?P<target>.*?))?"
    r"(?P<group> \[pg=\d+\])?"
)
# FSDP2 prints `None` for a group that was never given a name (no root forward ran).
_UNNAMED = ("", "None")


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedLabel:
    """One label. `unit` as in `UnitSpec.fqn`, None where the label names none."""

    label: Hook
    unit: str | None = None


def parse_label(name: str) -> ParsedLabel | None:
    """Read an annotation's name; None where it is no label known here."""
    if not name.startswith(PREFIX):
        return None
    match = _GRAMMAR.fullmatch(name)
    if match is None or match["label"] not in _LABELS:
        return None
    label = Hook(match["label"])
    if label in OF_STATE:
        return ParsedLabel(label=label)
    fqn = match["target"] if label in PREFETCHES else match["fqn"]
    unit = ROOT if fqn in (None, *_UNNAMED) else fqn
    return ParsedLabel(label=label, unit=unit + (match["group"] or ""))
