"""The pages of the docs that are made of the code: commands, and findings with words.

    python -m tests.made_pages

writes `docs/commands.md` and `docs/findings.md`. What `--help` and `explain` print is
their one source; a test holds the pages to it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from fsdpdoctor.cli import COMMANDS, main
from fsdpdoctor.detectors import ALL
from fsdpdoctor.renderers.reading.glossary import TERMS

DOCS = Path(__file__).parent.parent / "docs"

_LONGEST_LIST = 60
"""Characters of a list of choices; a longer one is told in words."""


def commands_page() -> str:
    """Each command with its arguments and options, in the order of `--help`."""
    lines = [
        "# Every command",
        "",
        "What `fsdpdoctor COMMAND --help` prints. Every command ends with status 0",
        "when it is done, 1 where `--fail-on` or `--max-regression` says so, and 2 for",
        "bad usage or input.",
        "",
    ]
    with click.Context(main, info_name="fsdpdoctor") as context:
        for name in COMMANDS:
            command = main.get_command(context, name)
            assert command is not None
            lines += _command(name, command)
    return "\n".join(lines).rstrip() + "\n"


def findings_page() -> str:
    """Each finding's page, and the words that all of them use."""
    lines = [
        "# Every finding",
        "",
        "What `fsdpdoctor explain CODE` prints. The evidence behind each, and where",
        "its thresholds come from, is in [detectors.md](detectors.md).",
        "",
    ]
    for detector in ALL:
        lines += [f"## {detector.code} {detector.name}", "", detector.page.strip(), ""]
    lines += ["## Words", "", "`fsdpdoctor explain WORD` prints these.", ""]
    lines += ["| word | meaning |", "|---|---|"]
    lines += [f"| {_cell(term.name)} | {_cell(term.meaning)} |" for term in TERMS]
    return "\n".join(lines) + "\n"


PAGES = {"commands.md": commands_page, "findings.md": findings_page}


def _command(name: str, command: click.Command) -> Iterator[str]:
    arguments = [p for p in command.params if isinstance(p, click.Argument)]
    usage = " ".join(["fsdpdoctor", name, "[OPTIONS]", *map(_argument, arguments)])
    yield from (f"## {name}", "", f"`{usage}`", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield from ("```text", paragraph[2:].strip("\n"), "```", "")
        else:
            yield from (re.sub(r"(?<!`)[<>](?!`)", r"\\\g<0>", paragraph), "")
    options = [p for p in command.params if isinstance(p, click.Option)]
    if not options:
        return
    yield from ("| option | |", "|---|---|")
    for option in options:
        if not option.hidden:
            yield f"| {_option(option)} | {_cell(_words(option))} |"
    yield ""


def _argument(argument: click.Argument) -> str:
    name = argument.name.upper() if argument.name else ""
    dots = "..." if argument.nargs != 1 else ""
    return f"{name}{dots}" if argument.required else f"[{name}{dots}]"


def _option(option: click.Option) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    return f"{names} {_cell(_value(option))}"


def _value(option: click.Option) -> str:
    if option.metavar:
        return option.metavar
    if isinstance(option.type, click.Choice):
        choices = ", ".join(map(str, option.type.choices))
        return choices if len(choices) <= _LONGEST_LIST else "NAME"
    return option.type.name.upper()


def _words(option: click.Option) -> str:
    words = option.help or ""
    if option.show_default and isinstance(option.default, str | int | float | Path):
        words += f" Default: {option.default}."
    if isinstance(option.type, click.Choice):
        choices = ", ".join(map(str, option.type.choices))
        if len(choices) > _LONGEST_LIST:
            words += f" One of {choices}."
    return words + (" Required." if option.required else "")


def _cell(text: str) -> str:
    return " ".join(re.sub(r"[|<>]", r"\\\g<0>", text).split())


if __name__ == "__main__":
    for _name, _page in PAGES.items():
        (DOCS / _name).write_text(_page(), encoding="utf-8")
