"""What a header may say: each number in its range, each index in its list."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from fsdpdoctor.errors import InputError
from fsdpdoctor.schema import UNKNOWN, Phase, RankHeader, RunHeader

MOST_RANKS = 1 << 20
"""Ten times the largest job that anybody has told of."""

MOST = 1 << 61
"""Of any number: a sum of two fits into 64 bits."""

_DIGITS_OF_MOST = 19

LONGEST_WORD = 4000
"""Characters of a name or a message. Real names have fewer than 120, and our own
messages are cut to 1,000; what is longer keeps its two ends."""

MOST_WORDS = 1000
"""Of a command line, or of notes: more than a shell's glob gives, or anybody reads."""

_WORDS: Mapping[type, tuple[str, ...]] = {
    RunHeader: ("command", "available", "applied", "notes"),
    RankHeader: ("warnings",),
}
_KEPT_OF_LONG = 500
_LONG_NUMBER = re.compile(rb"\d{19,}")
_DIGITS_AND_E = bytes.maketrans(b"123456789.E", b"0000000000e")
"""Makes every number with an exponent one that has "0e" in it."""

_Value = TypeVar("_Value")
_Header = TypeVar("_Header", RunHeader, RankHeader)


def checked_header(header: _Header, content: bytes) -> _Header:
    """A header as it was decoded from some content, its words no longer than they may
    be. Raises InputError where it lies.
    """
    if not 1 <= header.world_size <= MOST_RANKS:
        raise InputError(
            f"world_size is {header.world_size}; expected 1 to {MOST_RANKS:,}"
        )
    if header.schema_version < 1:
        raise InputError(f"schema_version is {header.schema_version}; expected 1 or 2")
    header = checked_values(header, content)
    if isinstance(header, RankHeader):
        _check_indices(header)
        _check_samples(header)
    elif header.every < 1:
        raise InputError(f"every is {header.every}; expected 1 or more")
    words = _WORDS[type(header)]
    many = [name for name in words if len(getattr(header, name)) > MOST_WORDS]
    few: dict[str, Any] = {name: _few(getattr(header, name)) for name in many}
    return replace(header, **few) if few else header


def checked_values(value: _Value, content: bytes) -> _Value:
    """What was decoded from some content, its words no longer than they may be. Raises
    InputError where a number is out of range.
    """
    # Looked at as bytes: walking through every header costs more than reading it.
    # Every other part stands between quotes, unless there are quotes within texts.
    parts = content.split(b'"')
    plain = b"\\" not in content
    words, numbers = (parts[1::2], parts[::2]) if plain else (parts, [content])
    if _may_be_large(b" ".join(numbers)):
        for name, number in _numbers(value, ""):
            if not -MOST < number < MOST:
                raise InputError(f"{name} is {str(number)[:40]}, which is out of range")
    long = max(map(len, words), default=0) > LONGEST_WORD
    return _shortened(value) if long else value


def _may_be_large(numbers: bytes) -> bool:
    """Whether a text may have a number that is out of range."""
    if b"0e" in numbers.translate(_DIGITS_AND_E):
        return True
    return any(map(_may_be_out, _LONG_NUMBER.findall(numbers)))


def _few(words: tuple[str, ...]) -> tuple[str, ...]:
    return (*words[:MOST_WORDS], f"...({len(words) - MOST_WORDS} more)")


def _may_be_out(digits: bytes) -> bool:
    """Not so a clock's nanoseconds since 1970, which every header holds."""
    return len(digits) != _DIGITS_OF_MOST or int(digits) >= MOST


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    if isinstance(value, int | float):
        yield name, value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _numbers(item, name)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, f"{name} of {key[:40]}")
    elif is_dataclass(value):
        for one in fields(value):
            yield from _numbers(getattr(value, one.name), one.name)


def _shortened(value: Any) -> Any:
    if isinstance(value, str):
        return short_word(value)
    if isinstance(value, tuple):
        return tuple(_shortened(item) for item in value)
    if isinstance(value, dict):
        return {_shortened(key): _shortened(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            one.name: _shortened(getattr(value, one.name)) for one in fields(value)
        }
        return replace(value, **changed)
    return value


def short_word(word: str) -> str:
    """A word that nobody could read, by its two ends."""
    if len(word) <= LONGEST_WORD:
        return word
    left_out = len(word) - 2 * _KEPT_OF_LONG
    return f"{word[:_KEPT_OF_LONG]}...({left_out} characters)...{word[-_KEPT_OF_LONG:]}"


def _check_indices(header: RankHeader) -> None:
    if header.rank < 0:
        raise InputError(f"rank is {header.rank}; expected 0 or more")
    units, groups = len(header.units), len(header.groups)
    # Older records name no models; each has one unit at least.
    models = max(units, len(header.model.models) if header.model is not None else 0)
    for at, unit in enumerate(header.units):
        _check((unit.model,), models, f"model of unit {at}", least=0)
        for name in ("forward_prefetch", "backward_prefetch"):
            _check(getattr(unit, name) or (), units, f"{name} of unit {at}", least=0)
        for name in ("shard_group", "replicate_group", "post_forward_group"):
            _check((getattr(unit, name),), groups, f"{name} of unit {at}")
    if header.memory is not None:
        memory = header.memory
        held = [memory.peak_unit, *(share.unit for share in memory.peak)]
        held += [moment.unit for moment in memory.moments]
        _check(tuple(held), units, "memory")
        _check(tuple(u.unit for u in memory.units), units, "memory.units", least=0)
        phases = (memory.peak_phase, *(moment.phase for moment in memory.moments))
        _check(phases, len(Phase), "phase of memory", least=0)
    if header.model is not None:
        _check(header.model.forward_order, units, "forward_order", least=0)
        for parent in header.model.idle_parents:
            _check(parent.units, units, "idle_parents", least=0)


def _check_samples(header: RankHeader) -> None:
    for replica in header.replicas:
        steps, values = len(replica.steps), len(replica.values)
        if steps != values:
            raise InputError(f"a replica has {values} values of {steps} steps")


def _check(
    given: tuple[int, ...], count: int, name: str, *, least: int = UNKNOWN
) -> None:
    for index in given:
        if not least <= index < count:
            raise InputError(f"{name} names number {index} of {count}")
