"""HTA's tables, and its figures beside ours, as a field of the report's JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from fsdpdoctor.integrations.hta import Compared, HtaTables, Idle, KernelType, Queue
from fsdpdoctor.report import Report
from fsdpdoctor.storage.json_text import json_text


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaRank:
    """One rank's figures of the whole capture: ours, and HTA's."""

    rank: int
    overlap_share: float | None  # None: there was no communication
    hta_overlap_share: float | None  # None: HTA made none, or saw no communication
    idle_ns: int
    hta_idle_ns: int | None  # None: HTA made no such table
    communication_ns: int
    capture_ns: int
    explained: bool | None  # by HTA's rules, ours are HTA's; None: it made none
    because: tuple[str, ...]  # those of its rules that move ours


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaSection:
    """The field `hta`."""

    version: str
    ranks: tuple[HtaRank, ...]
    kernel_types: tuple[KernelType, ...]
    idle: tuple[Idle, ...]
    queue: tuple[Queue, ...]
    errors: Mapping[str, str]


def encode_with_hta(
    report: Report, tables: HtaTables, ranks: Sequence[Compared]
) -> str:
    """The report as JSON, and in it what HTA says."""
    section = HtaSection(
        version=tables.version,
        ranks=tuple(_rank(one) for one in ranks),
        kernel_types=tables.kernel_types,
        idle=tables.idle,
        queue=tables.queue,
        errors=tables.errors,
    )
    return json_text({**msgspec.to_builtins(report), "hta": section})


def _rank(one: Compared) -> HtaRank:
    return HtaRank(
        rank=one.rank,
        overlap_share=one.ours.share,
        hta_overlap_share=one.share,
        idle_ns=one.ours.idle_ns,
        hta_idle_ns=one.idle_ns,
        communication_ns=one.ours.communication_ns,
        capture_ns=one.ours.capture_ns,
        explained=one.explained,
        because=one.because,
    )
