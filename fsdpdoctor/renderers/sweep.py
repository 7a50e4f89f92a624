"""A sweep on the terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fsdpdoctor.planning.sweep import Outcome, best, front
from fsdpdoctor.quantities import GIB, count, ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All that a sweep found."""

    script: str
    device: str
    outcomes: Sequence[Outcome]
    price_per_hour: float | None
    handles: Mapping[str, str]  # where the script takes a dimension

    @property
    def unit(self) -> str:
        """What its speeds count: tokens, or samples."""
        return next((o.unit for o in self.outcomes if o.per_second), "tokens")

    @property
    def ordered(self) -> list[Outcome]:
        """The fastest first, then what does not fit, then what failed."""

        def rank(one: Outcome) -> tuple[int, float, int]:
            group = 0 if one.usable else 1 if one.fits is False else 2
            return group, -(one.per_second or 0), one.step_ns or 0

        return sorted(self.outcomes, key=rank)

    def price(self, one: Outcome) -> float | None:
        """Of a million tokens or samples on one device."""
        return one.price_per_million(self.price_per_hour)


def show_sweep(sweep: Sweep, console: Console) -> None:
    """Print the table, and a command for each of the best three."""
    console.print(Text(f"{sweep.script} on {sweep.device}, rehearsed"), soft_wrap=True)
    console.print(_table(sweep))
    for line in _below(sweep):
        console.print(Text(line), soft_wrap=True)
    chosen = best(sweep.outcomes)
    if chosen:
        console.print(Text("\nthe best, as a command each:"))
    for one in chosen:
        console.print(Text(f"  {' '.join(one.command)}"), soft_wrap=True)


def _table(sweep: Sweep) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    names = list(sweep.outcomes[0].choice) if sweep.outcomes else []
    table.add_column("")
    for name in names:
        heading = name.replace("-", "\n").replace("checkpointing", "check-\npointing")
        table.add_column(heading, justify="right", overflow="fold")
    for name in (f"{sweep.unit}/s", "step", "GiB"):
        table.add_column(name, justify="right", no_wrap=True)
    if sweep.price_per_hour is not None:
        table.add_column("price", justify="right", no_wrap=True)
    table.add_column("")
    on_front = {id(one) for one in front(sweep.outcomes)}
    for one in sweep.ordered:
        mark = "*" if id(one) in on_front else ""
        cells = [mark, *one.choice.values(), *figures(one)]
        if sweep.price_per_hour is not None:
            price = sweep.price(one)
            cells.append("" if price is None else f"{price:.3f}")
        # Grey, and said in words: nothing is told by colour alone.
        cells.append("tight" if one.tight and one.usable else short_reason(one))
        table.add_row(*cells, style="" if one.usable else "bright_black")
    return table


def short_reason(one: Outcome) -> str:
    """Why it cannot be used, as a table has room for it."""
    return one.reason.partition(", in ")[0] if one.fits is False else one.reason


def figures(one: Outcome) -> tuple[str, str, str]:
    """Speed, step and memory; nothing of what cannot be used."""
    if not one.usable:
        return "", "", ""
    speed = one.per_second
    return (
        "?" if speed is None else f"{speed:,.0f}",
        ms(one.step_ns or 0),
        f"{(one.reserved_bytes or 0) / GIB:.1f}",
    )


def _below(sweep: Sweep) -> list[str]:
    unit = sweep.unit
    lines = [f"* nothing faster takes as little memory; {unit}/s are of one device"]
    if sweep.price_per_hour is not None:
        lines.append(
            f"price: of a million {unit}, where a device's hour costs "
            f"{sweep.price_per_hour:g}"
        )
    if any(one.tight for one in sweep.outcomes if one.usable):
        lines.append(
            "tight: the allocator found no room and gave its cache back; a real job "
            "may be far slower"
        )
    said = ", ".join(f"{name} by {where}" for name, where in sweep.handles.items())
    if said:
        lines.append(f"the script's own settings were varied: {said}")
    left = sum(not one.usable for one in sweep.outcomes)
    if left:
        lines.append(f"{count(left, 'configuration')} of them cannot be used")
    return lines


def encode_sweep(sweep: Sweep) -> str:
    """The same as JSON."""
    chosen = [id(one) for one in best(sweep.outcomes)]
    on_front = {id(one) for one in front(sweep.outcomes)}
    content = {
        "schema_version": 1,
        "script": sweep.script,
        "device": sweep.device,
        "price_per_hour": sweep.price_per_hour,
        "varied_by": dict(sweep.handles),
        "configurations": [
            _encoded(sweep, one, id(one) in on_front) for one in sweep.ordered
        ],
        "best": [sweep.ordered.index(o) for o in sweep.ordered if id(o) in chosen],
    }
    return json.dumps(content, indent=2) + "\n"


def _encoded(sweep: Sweep, one: Outcome, on_front: bool) -> dict[str, Any]:
    return {
        "choice": dict(one.choice),
        "fits": one.fits,
        "reason": one.reason or None,
        "tokens_per_second": one.per_second if one.unit == "tokens" else None,
        "samples_per_second": one.per_second if one.unit == "samples" else None,
        "step_ns": one.step_ns if one.usable else None,
        "reserved_bytes": one.reserved_bytes if one.usable else None,
        "needed_bytes": one.needed_bytes,
        "room_bytes": one.room_bytes,
        "tight": one.tight,
        "price_per_million": sweep.price(one),
        "on_front": on_front,
        "command": " ".join(one.command) or None,
    }
