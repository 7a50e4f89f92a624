"""A report without the names of whoever trained: modules, classes, files, hosts.

What is left of a name is its place: `encoder.3.attention` is `part1.3.part2`, so that
findings, code and timeline still speak of the same units.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from fsdpdoctor.report.value import Report, decode, encode
from fsdpdoctor.storage.json_value import replace

KEPT = frozenset(("model", "module", "layers", "layer", "blocks", "block", "root"))
"""Parts of names that say nothing of anybody's model."""

HIDDEN = "(left out)"

_APART = re.compile(r" \[(?:pg|tree)=\d+\]")
"""What tells units of one name apart: ours, and no part of it."""

_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[\w.~-]*[/\\]){1,}[\w.-]+")
_FILE = re.compile(r"[\w.-]+\.(?:py|ipynb|sh|yaml|json)\b")
_ERROR = re.compile(r"(\b\w*(?:Error|Exception)\b):.*", re.DOTALL)


class Stand:
    """What stands for names, the same for the same name."""

    def __init__(self, units: Iterable[str], hosts: Iterable[str]) -> None:
        parts = dict.fromkeys(
            part
            for name in units
            for part in re.split(r"[^A-Za-z0-9_]+", _APART.sub("", name))
            if part and not part.isdigit() and part.lower() not in KEPT
        )
        self._names = {part: f"part{at}" for at, part in enumerate(parts, 1)}
        for at, host in enumerate(dict.fromkeys(hosts), 1):
            self._names[host] = f"host{at}"
        ordered = sorted(self._names, key=len, reverse=True)
        self._any = re.compile(
            r"(?<![A-Za-z0-9_])("
            + "|".join(map(re.escape, ordered))
            + r")(?![A-Za-z0-9_]|=\d+\])"
        )

    def __call__(self, text: str) -> str:
        """The text without names, paths, and what errors say."""
        text = _ERROR.sub(rf"\1: {HIDDEN}", text)
        text = _FILE.sub("script.py", _PATH.sub("script.py", text))
        if not self._names:
            return text
        return self._any.sub(lambda found: self._names[found[0]], text)


def stand_for(report: Report) -> Stand:
    """For the names of a report: its units, their classes, its models, its hosts."""
    units = [unit.unit for unit in report.units]
    classes = [unit.module_class for unit in report.units]
    models = [report.run.model_class or "", *(row.name for row in report.models)]
    rows = [row.unit or "" for row in report.health.stopped]
    hosts = [row.host for row in report.ranks if row.host]
    return Stand([*units, *classes, *models, *rows], hosts)


def anonymous(report: Report, stand: Stand) -> Report:
    """The same figures without the names, and without what may hold any text."""
    told = replace(
        report,
        run=replace(
            report.run, run_id="", command=(), notes=(), configuration={}, applied=()
        ),
        health=replace(report.health, warnings=()),
        findings=tuple(replace(row, evidence={}) for row in report.findings),
    )
    return decode(
        msgspec.json.encode(_changed(msgspec.json.decode(encode(told)), stand))
    )


def _changed(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_changed(one, change) for one in value]
    if isinstance(value, dict):
        return {key: _changed(one, change) for key, one in value.items()}
    return value
