"""Memory budgets on the terminal: a table, and a picture of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from fsdpdoctor.planning.memory_plan import MemoryBudget, Training
from fsdpdoctor.planning.model_shape import ModelShape
from fsdpdoctor.quantities import count, size

BAR = 50
"""Characters of the longest bar."""

PARTS = (
    ("parameters", "params", "P"),
    ("optimizer", "optim.", "O"),
    ("gradients", "grads", "G"),
    ("gathered", "gathered", "U"),
    ("buffers", "buffers", "B"),
    ("activations", "activ.", "A"),
)
"""The fields of a budget: column of the table, letter of the bar."""

UNKNOWN_CELL = "?"
"""Of a part that is not known; a line below the tables says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of a billion tokens."""

    hours: float
    money: float | None


def show_budgets(
    shape: ModelShape,
    how: Training,
    found: Mapping[bool, Sequence[MemoryBudget]],
    console: Console,
    *,
    fits: int | None,
    costs: Costs | None,
) -> None:
    """Print each strategy without and with activation checkpointing."""
    _line(
        console,
        f"{shape.name}: {shape.numel:,} parameters in "
        f"{count(len(shape.blocks), 'block')}, {count(how.world_size, 'rank')}"
        + (f" ({how.replicas} replicas)" if how.replicas > 1 else ""),
    )
    if shape.assumed:
        _line(
            console,
            f"not in the file, as transformers takes them: {', '.join(shape.assumed)}",
        )
    known = found[False][0].activations is not None
    for checkpointing, each in found.items():
        if checkpointing and not known:
            continue
        limit = "" if fits is None else f", against {size(fits)}"
        title = "with activation checkpointing" if checkpointing else "on each rank"
        title += limit
        _line(console, f"\n{title}")
        for line in _table(each, fits):
            _line(console, line)
    if not known:
        _line(
            console,
            "\nactivations are not in it: they need --batch, --sequence and a "
            "config.json",
        )
    _line(console, "")
    longest = max(b.total for b in found[False]) or 1
    for budget in found[False]:
        _line(console, f"{budget.strategy:>8} {_bar(budget, longest)}")
    letters = ", ".join(f"{letter} {name}" for name, _, letter in PARTS)
    _line(console, f"{'':>8} {letters}")
    _line(
        console,
        "\nBesides: the CUDA context, NCCL's buffers and fragmentation, "
        "together 1 to 3 GiB.",
    )
    if costs is not None:
        money = "" if costs.money is None else f", {costs.money:,.2f} in money"
        _line(console, f"A billion tokens take {costs.hours:,.1f} hours{money}.")


def _line(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)


CELL = 10
"""Characters of a column: a size, and a space before it."""


def _table(budgets: Sequence[MemoryBudget], fits: int | None) -> Iterator[str]:
    """Lines of columns that keep their width on a narrow terminal."""
    headings = [*(heading for _, heading, _ in PARTS), "total", "on host"]
    last = "" if fits is None else "  fits"
    yield " " * 8 + "".join(f"{h:>{CELL}}" for h in headings) + last
    for budget in budgets:
        cells = [_cell(getattr(budget, name)) for name, _, _ in PARTS]
        cells += [size(budget.total), size(budget.host) if budget.host else ""]
        line = f"{budget.strategy:<8}" + "".join(f"{c:>{CELL}}" for c in cells)
        if fits is not None:
            line += "  yes" if budget.total <= fits else "  no"
        yield line


def _cell(value: int | None) -> str:
    return UNKNOWN_CELL if value is None else size(value)


def _bar(budget: MemoryBudget, longest: int) -> str:
    bar = ""
    reached = 0
    for name, _, letter in PARTS:
        reached += getattr(budget, name) or 0
        # By where each part ends, so that rounding never adds up.
        bar += letter * (round(reached / longest * BAR) - len(bar))
    return bar
