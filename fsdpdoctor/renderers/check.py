"""`fsdpdoctor check` in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.text import Text

from fsdpdoctor.changes.fsdp1_migration import Migration
from fsdpdoctor.renderers.formatting import units, visible, whole
from fsdpdoctor.renderers.reading.unit_names import by_model, names_in
from fsdpdoctor.renderers.report_view import content_of
from fsdpdoctor.renderers.text import show_findings
from fsdpdoctor.report.check import Check
from fsdpdoctor.report.value import UnitRow
from fsdpdoctor.schema import ROOT
from fsdpdoctor.storage.json_value import replace

MOST_FINDINGS_NAMED = 6
"""In the first line."""


def show_check(check: Check, console: Console) -> None:
    """The verdict, the tree of units, findings, and what FSDP1 becomes."""
    console.print(Text(headline(check), style="bold"), soft_wrap=True)
    if check.memory is not None:
        console.print(Text(check.memory), soft_wrap=True)
    if check.report is not None and check.report.units:
        console.print()
        named = names_in(check.report)
        for model, rows in by_model(check.report.units, check.report.models):
            if model is not None:
                console.print(Text(f"{model}:"), soft_wrap=True)
            mine = [replace(row, unit=named.within(row.unit)) for row in rows]
            for line in tree(mine):
                console.print(Text(line), soft_wrap=True)
    if check.migration is not None:
        _migration(check.migration, console)
    if check.findings and check.report is not None:
        show_findings(console, content_of(check.report))


def headline(check: Check) -> str:
    """One sentence: what was found, or why nothing could be."""
    if check.migration is not None:
        return (
            f"{check.script}:{check.migration.line} shards its model with FSDP1: "
            "below is what each argument becomes in FSDP2"
        )
    if check.ended is not None and not check.findings:
        return f"{check.script} was not judged: {visible(check.ended)}"
    codes = [f"{one.code} {one.name}" for one in check.findings]
    if not codes:
        return f"{check.script}: nothing to change in what needs no timing"
    named = ", ".join(codes[:MOST_FINDINGS_NAMED])
    more = len(codes) - MOST_FINDINGS_NAMED
    needs = "finding that needs" if len(codes) == 1 else "findings that need"
    tail = f" and {more} more" if more > 0 else ""
    return f"{check.script}: {len(codes)} {needs} no timing: {named}{tail}"


def tree(rows: Sequence[UnitRow]) -> Iterator[str]:
    """Units below the unit that holds them, equal siblings in one line."""
    names = [row.unit for row in rows]
    for _, alike in groupby(rows, key=_alike):
        same = list(alike)
        row = same[0]
        depth = sum(_holds(other, row.unit) for other in names if other != row.unit)
        some = f"{len(same)} x " if len(same) > 1 else ""
        size = f"{whole(row.numel)} parameters" if row.numel is not None else ""
        parts = [f"{some}{visible(row.module_class)}", size, *_settings(row)]
        shown = units([one.unit for one in same])
        what = ", ".join(part for part in parts if part)
        yield f"{'  ' * (depth + 1)}{shown}  {what}"


def _alike(row: UnitRow) -> tuple[object, ...]:
    kept = row.settings
    return (
        row.module_class,
        row.numel,
        kept.reshard_after_forward,
        kept.param_dtype,
        kept.reduce_dtype,
        kept.stored_dtype,
        kept.offload,
        kept.mesh,
        row.unit.count("."),
    )


def _holds(outer: str, inner: str) -> bool:
    """Whether a unit's module holds another's, by their names."""
    return outer == ROOT or inner.startswith(f"{outer}.")


def _settings(row: UnitRow) -> Iterator[str]:
    kept = row.settings
    if kept.reshard_after_forward is not None:
        yield f"reshard_after_forward={kept.reshard_after_forward}"
    stored, gathered = kept.stored_dtype, kept.param_dtype or kept.stored_dtype
    if stored is not None:
        yield stored if stored == gathered else f"{stored} gathered as {gathered}"
    if kept.reduce_dtype not in (None, gathered):
        yield f"reduced in {kept.reduce_dtype}"
    if kept.offload is not None:
        yield f"offload {kept.offload}"
    if kept.mesh is not None:
        yield f"mesh {kept.mesh}"


def _migration(found: Migration, console: Console) -> None:
    console.print()
    for one in found.replaced:
        console.print(Text(f"  line {one.line}: {one.was}"), soft_wrap=True)
        console.print(Text(f"    -> {one.now}", style="dim"), soft_wrap=True)
    console.print(Text(f"\n  In the place of line {found.line}:"))
    for line in found.code.split("\n"):
        console.print(Text(f"      {line}".rstrip(), style="cyan"), soft_wrap=True)
