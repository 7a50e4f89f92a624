"""Names of modules, classes and methods, as text of Python that is to be pasted."""

from __future__ import annotations

from collections.abc import Sequence

MOST_LISTED = 12
"""As many names that only count up are written out; more are a range."""

WIDTH = 60
"""What the names of a list take of a line; a longer list has one line for each."""


def quoted(text: str) -> str:
    """A string literal: whatever the name holds, it ends where the literal ends."""
    literal = repr(text)
    if literal[0] == "'" and '"' not in text:
        return f'"{literal[1:-1]}"'
    return literal


def in_comment(name: str) -> str:
    """A name behind a `#`: it ends in the line that it stands in."""
    return name if name.isprintable() else quoted(name)


def submodule(path: str) -> str:
    """The expression for a module by its path; "" is the root module."""
    return f"model.get_submodule({quoted(path)})" if path else "model"


def together(paths: Sequence[str]) -> str:
    """One module, or a list of them: what one `fully_shard` call takes."""
    modules = ", ".join(submodule(path) for path in paths)
    return f"[{modules}]" if len(paths) > 1 else modules


def name_list(names: Sequence[str]) -> str:
    """A list of names, or what makes it where many of them only count up."""
    counted = _counted(names) if len(names) > MOST_LISTED else None
    if counted is not None:
        return counted
    literals = [quoted(name) for name in names]
    if sum(map(len, literals)) < WIDTH:
        return f"[{', '.join(literals)}]"
    return "\n".join(["[", *(f"    {literal}," for literal in literals), "]"])


def _counted(names: Sequence[str]) -> str | None:
    heads = {name.rpartition(".")[0] for name in names}
    tails = [name.rpartition(".")[2] for name in names]
    if len(heads) > 1 or not all(t.isdecimal() and str(int(t)) == t for t in tails):
        return None
    first, second, *_ = counts = [int(tail) for tail in tails]
    step = second - first
    if step not in (1, -1):
        return None
    end = counts[-1] + step
    if counts != list(range(first, end, step)):
        return None
    head = heads.pop()
    prefix = f"{head}.".replace("{", "{{").replace("}", "}}") if head else ""
    run = f"{first}, {end}" if step == 1 else f"{first}, {end}, {step}"
    return f"[f{quoted(prefix + '{i}')} for i in range({run})]"
