"""A run without what names people and machines, to give away.

What says how the model was trained stays: every time, count and byte, units' names
(unless they are masked, too) and files' names without their folders.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

import msgspec

from fsdpdoctor import redact
from fsdpdoctor.hang.error_meaning import known_phrases
from fsdpdoctor.hang.standing import LOST_PEER, TIMEOUT
from fsdpdoctor.rank_end import Fatal, RankEnd, Stall
from fsdpdoctor.run import RankData, RankSource, Run
from fsdpdoctor.schema import RankHeader, RunHeader

LEFT_OUT = "(left out)"

Change = Callable[[str], str]
Value = TypeVar("Value", RankHeader, RunHeader, Stall, Fatal, RankEnd)

_PATH = re.compile(
    r"(?<![\w.<-])(?:(?:[A-Za-z]:|~)?[/\\](?:[\w.~@+-]+[/\\])*[\w.@+-]+"
    r"|(?:[\w.~@+-]+[/\\])+[\w.@+-]+\.(?:py|ipynb|sh|ya?ml|json|pt)\b)"
)
_OF_NOBODY = re.compile(
    r"(?:.*(?:site|dist)-packages[/\\]|.*(?=/lib/python3\.\d+/)|(?=torch/)"
    r"|.*(?=/fsdpdoctor/))(.+)"
)
"""Installed packages and Python's library: their files are everybody's."""
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://\S+")
_MAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_ERROR = re.compile(r"(\b\w*(?:Error|Exception|Interrupt)\b):(.*)", re.DOTALL)
_LONGEST_PHRASE = 120
_HOME = re.compile(r"(?:/home/|/Users/|\\Users\\)([\w.-]+)")


class Cleaner:
    """Takes from a text what names a person, a machine or a place on its disk."""

    def __init__(self, hosts: Iterable[str], users: Iterable[str]) -> None:
        named = {host: f"host{at}" for at, host in enumerate(dict.fromkeys(hosts))}
        for at, user in enumerate(dict.fromkeys(users)):
            named.setdefault(user, f"user{at}")
        self._named = named
        longest = sorted(named, key=len, reverse=True)
        words = "|".join(map(re.escape, longest)) or r"(?!)"
        self._words = re.compile(rf"(?<![A-Za-z0-9])(?:{words})(?![A-Za-z0-9])")

    def __call__(self, text: str) -> str:
        """The text without them."""
        text = _ERROR.sub(lambda e: f"{e[1]}: {without_words(e[2])}", text)
        text = _URL.sub(LEFT_OUT, text)
        text = _MAIL.sub(LEFT_OUT, _ADDRESS.sub(LEFT_OUT, text))
        text = self._words.sub(lambda found: self._named[found[0]], text)
        return redact.text(_PATH.sub(lambda p: _short(p[0]), text))

    def host(self, name: str) -> str:
        """What stands for a host."""
        return self._named.get(name, LEFT_OUT)


def cleaner_of(run: Run) -> Cleaner:
    """For the hosts of a run, and the users whose folders its texts name."""
    hosts: list[str] = []
    texts = [*run.header.command, *run.header.notes, *run.warnings]
    for data in run.load():
        hosts += [] if data.header.host is None else [data.header.host]
        texts += [*data.names, *data.header.warnings, data.header.ended]
        texts += [msgspec.json.encode(data.header.end).decode()]
        texts += [msgspec.json.encode((data.stall, data.fatal)).decode()]
    return Cleaner(hosts, (user for text in texts for user in _HOME.findall(text)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedSource:
    """A rank that is cleaned as it is loaded."""

    source: RankSource
    clean: Cleaner
    mask: Change

    @property
    def rank(self) -> int:
        return self.source.rank

    @property
    def where(self) -> str:
        return f"rank {self.rank}"

    def load(self) -> RankData:
        """Its record: the same figures."""
        data = self.source.load()
        change = self.change
        header = data.header
        host = None if header.host is None else self.clean.host(header.host)
        end = None if header.end is None else _without_words(header.end)
        return replace(
            data,
            header=replace(
                _changed(
                    replace(header, host=None, run_id="", environment={}, end=end),
                    change,
                ),
                host=host,
            ),
            names=tuple(map(change, data.names)),
            stall=None if data.stall is None else _changed(data.stall, change),
            fatal=None if data.fatal is None else _changed(data.fatal, change),
            truncated=None if data.truncated is None else change(data.truncated),
        )

    def change(self, text: str) -> str:
        """A text of this rank, as it may be given away."""
        return self.mask(self.clean(text))


def redacted(run: Run, clean: Cleaner, mask: Change) -> Run:
    """A run whose ranks are cleaned, one at a time, as they are loaded.

    Args:
        run: Any run.
        clean: What takes out people, machines and places.
        mask: What is done to each text after it: hides modules' names, or nothing.
    """
    header = _changed(replace(run.header, command=()), lambda text: mask(clean(text)))
    return Run(
        header=replace(header, run_id="redacted"),
        sources=tuple(
            RedactedSource(source=source, clean=clean, mask=mask)
            for source in run.sources
        ),
        warnings=tuple(mask(clean(line)) for line in run.warnings),
    )


def _short(path: str) -> str:
    """Without its folders, of a file that is somebody's."""
    common = _OF_NOBODY.fullmatch(path)
    return common[1] if common else re.split(r"[/\\]", path)[-1]


def without_words(message: str) -> str:
    """What an exception said, but for the phrases by which its meaning is known, as
    "Connection reset by peer": without them another rank would be blamed.
    """
    known = (LOST_PEER, TIMEOUT, *known_phrases())
    found = [match[0] for match in (one.search(message) for one in known) if match]
    kept = dict.fromkeys(one for one in found if len(one) <= _LONGEST_PHRASE)
    return " ".join((LEFT_OUT, *kept))


def _without_words(end: RankEnd) -> RankEnd:
    """An exception's type and stack, without what it said."""
    message = None if end.message is None else without_words(end.message)
    return replace(end, message=message)


def _without_code(value: object) -> object:
    if isinstance(value, dict):
        return {
            key: None if key == "code" else _without_code(one)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_code(one) for one in value]
    return value


def _changed(value: Value, change: Change) -> Value:
    """The same value with each of its texts changed, and without lines of code."""
    plain = _without_code(msgspec.to_builtins(value))
    return msgspec.convert(_texts(plain, change), type(value))


def _texts(value: object, change: Change) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list | tuple):
        return [_texts(one, change) for one in value]
    if isinstance(value, dict):
        return {key: _texts(one, change) for key, one in value.items()}
    return value
