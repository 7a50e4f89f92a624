"""How a script's own settings are reached: by its options, or by its environment.

What a sweep varies must be something that the script takes. Where its arguments have
`{micro-batch}` in them, that is the place. Else its source is read, not run: an option
that `add_argument` or click's `option` declares, or a variable that it asks the
environment for, of the setting's name or of one that is used for the same.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

NAMES: Mapping[str, tuple[str, ...]] = {
    "micro-batch": (
        *("micro-batch", "micro-batch-size", "local-batch-size", "device-batch-size"),
        *("per-device-train-batch-size", "per-device-batch-size", "batch-size"),
        *("train-batch-size", "micro-bs", "mbs", "batch", "bs"),
    ),
    "sequence": (
        *("sequence", "sequence-length", "seq-length", "seq-len", "seqlen"),
        *("max-seq-len", "max-length", "context-length", "block-size"),
    ),
}
"""What scripts call a setting, the plainest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """Where a script takes a setting."""

    option: str | None = None  # --batch-size, given last, so that it counts
    variable: str | None = None  # of the environment
    placed: bool = False  # in the arguments, by its name in braces

    def __str__(self) -> str:
        if self.placed:
            return "its arguments"
        return self.option or f"${self.variable}"


def handle_of(name: str, source: str, args: Sequence[str]) -> Handle | None:
    """Where the script takes the setting; None: nowhere that can be seen."""
    if any(f"{{{name}}}" in arg for arg in args):
        return Handle(placed=True)
    options, variables = _taken(source)
    for known in NAMES.get(name, (name,)):
        if (option := options.get(known)) is not None:
            return Handle(option=option)
        if (variable := variables.get(known)) is not None:
            return Handle(variable=variable)
    return None


def arguments_with(
    args: Sequence[str], values: Mapping[str, str], handles: Mapping[str, Handle]
) -> list[str]:
    """The script's arguments with each setting's value in its place."""
    made = list(args)
    for name, value in values.items():
        handle = handles.get(name)
        if handle is None or handle.variable is not None:
            continue
        if handle.placed:
            made = [arg.replace(f"{{{name}}}", value) for arg in made]
        else:
            made += [str(handle.option), value]
    return made


def environment_with(
    values: Mapping[str, str], handles: Mapping[str, Handle]
) -> dict[str, str]:
    """What must be in the environment besides."""
    return {
        handle.variable: values[name]
        for name, handle in handles.items()
        if handle.variable is not None and name in values
    }


def _taken(source: str) -> tuple[dict[str, str], dict[str, str]]:
    """Options and variables by their plain names: `--batch_size` is batch-size."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return {}, {}
    options: dict[str, str] = {}
    variables: dict[str, str] = {}
    for node in ast.walk(tree):
        for text in _options(node):
            options.setdefault(_plain(text), text)
        for text in _variables(node):
            variables.setdefault(_plain(text), text)
    return options, variables


def _plain(name: str) -> str:
    return name.lstrip("-").lower().replace("_", "-").rpartition(".")[2]


def _options(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Call(func=ast.Attribute(attr="add_argument" | "option"), args=args):
            for text in _texts(args):
                if text.startswith("--"):
                    yield text.partition("/")[0]  # click: --flag/--no-flag


def _variables(node: ast.AST) -> Iterator[str]:
    """os.environ.get("X"), os.getenv("X"), os.environ["X"], environ.get("X")."""
    match node:
        case ast.Call(func=ast.Attribute(attr="getenv"), args=args):
            yield from _texts(args[:1])
        case ast.Call(func=ast.Name(id="getenv"), args=args):
            yield from _texts(args[:1])
        case ast.Call(func=ast.Attribute(attr="get", value=of), args=args):
            if _is_environment(of):
                yield from _texts(args[:1])
        case ast.Subscript(value=of, slice=key):
            if _is_environment(of):
                yield from _texts([key])


def _is_environment(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr="environ") | ast.Name(id="environ"):
            return True
    return False


def _texts(args: Sequence[ast.expr]) -> Iterator[str]:
    for arg in args:
        if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
            yield arg.value
