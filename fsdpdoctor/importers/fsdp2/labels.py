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
from enum import StrEnum

from fsdpdoctor.schema import ROOT

PREFIX = "FSDP::"


class Label(StrEnum):
    """The labels, in FSDP2's words."""

    ALL_GATHER = "all_gather"
    ALL_GATHER_COPY_OUT = "all_gather_copy_out"
    PRE_FORWARD = "pre_forward"
    POST_FORWARD = "post_forward"
    PRE_BACKWARD = "pre_backward"
    POST_BACKWARD_ACCUMULATE = "post_backward_accumulate"
    POST_BACKWARD_RESHARD = "post_backward_reshard"
    POST_BACKWARD_RS_WAIT = "post_backward_rs_wait"
    POST_BACKWARD_REDUCE = "post_backward_reduce"
    FORWARD_PREFETCH = "forward_prefetch"
    BACKWARD_PREFETCH = "backward_prefetch"
    ROOT_PRE_FORWARD = "root_pre_forward"
    INPUTS_TO_DEVICE = "inputs_to_device"
    CAST_FORWARD_INPUTS = "cast_forward_inputs"
    CAST_FORWARD_OUTPUTS = "cast_forward_outputs"
    ROOT_POST_BACKWARD_CALLBACK = "root_post_backward_callback"


PREFETCHES = (Label.FORWARD_PREFETCH, Label.BACKWARD_PREFETCH)

OF_STATE = (
    Label.ROOT_PRE_FORWARD,
    Label.INPUTS_TO_DEVICE,
    Label.CAST_FORWARD_INPUTS,
    Label.CAST_FORWARD_OUTPUTS,
    Label.ROOT_POST_BACKWARD_CALLBACK,
)
"""Labels that name no unit."""

_LABELS = frozenset(label.value for label in Label)
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

    label: Label
    unit: str | None = None


def parse_label(name: str) -> ParsedLabel | None:
    """Read an annotation's name; None where it is no label known here."""
    if not name.startswith(PREFIX):
        return None
    match = _GRAMMAR.fullmatch(name)
    if match is None or match["label"] not in _LABELS:
        return None
    label = Label(match["label"])
    if label in OF_STATE:
        return ParsedLabel(label=label)
    fqn = match["target"] if label in PREFETCHES else match["fqn"]
    unit = ROOT if fqn in (None, *_UNNAMED) else fqn
    return ParsedLabel(label=label, unit=unit + (match["group"] or ""))
