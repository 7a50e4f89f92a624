"""Keeps secrets out of what is written: the one place, for every writer.

`docs/secrets.md` is this rule in words. What is hidden too often costs a word of a
command line; what is hidden too seldom costs an account: in doubt it is hidden.
Standard library only: the recorder carries it into other people's trainings.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any
from urllib.parse import unquote

from fsdpdoctor.redact.secret_names import is_always_secret, is_secret_name
from fsdpdoctor.redact.secret_shapes import without_known_shapes, without_random_runs
from fsdpdoctor.redact.secret_values import (
    PASSWORD_OPTION,
    TAKING_PASSWORDS,
    behind_option,
    hide_values,
    is_answer,
    values_in,
)

HIDDEN = "<redacted>"

MOST_TEXT = 1 << 16
"""Characters of a text that are looked at; the rest is cut, not written."""

_KEPT = re.compile(
    r"CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING|NCCL_\w+|TORCH_NCCL_\w+"
    r"|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|OMP_NUM_THREADS"
    r"|TORCH_DISTRIBUTED_DEBUG|ACCELERATE_USE_FSDP|ACCELERATE_USE_CPU|FSDP_VERSION"
)
"""The environment variables that explain a run; no other is written."""

_LOGIN = re.compile(
    r"(?P<before>(?:(?<!\w)\w[\w+.-]{0,60}:|(?<![\w:/]))(?://|\\/\\/))"
    r"(?:[^\s/@:\"'<]{0,2000}:(?!\d{1,5}/)[^\s\"'<]{0,2000}|[^\s/@\"'<]{0,2000})@"
    r"|(?<![\w.:/@-])(?P<user>[\w.+-]+:)(?!(?:\d{1,4}|\d*\.\d+)@)[^\s/@\"'<:]+@"
    r"(?=[\w\[])"
    r"|(?P<oracle>jdbc:oracle:\w+:[\w.-]+/|(?<![\w./:@-])[\w.-]+/(?=[^\s/@\"'<]+@//))"
    r"[^\s/@\"'<]+@"
)
"""`scheme://login@host`, `login:password@host`. What is repeated is bounded, for many
beginnings of addresses in a row would each look for an end."""

_QUERY = re.compile(r"(?P<before>\w://[^\s\"'?<]{0,4000}\?)(?P<query>[^\s\"'<]*)")
_WORD = re.compile(r"[^\s\"']+")
_ENCODED = re.compile(r"%(?:25)*(?:3[aAdD]|22|26|40)")
_MOST_ENCODED = 3
"""Addresses within addresses."""

_QUERY_VALUE = re.compile(r"=[^&;#]*")

_PROSE = re.compile(
    r"\b(?P<word>pass(?:word|phrase|code|wd)|pwd|secret|credentials?"
    r"|(?:api|access|auth|secret|private|bearer|refresh|session)[ _-]?(?:key|token)"
    r"|(?P<weak>token|key))s?"
    r"(?P<mid>(?:\s+(?:provided|given|supplied|used|value|of|for\s+[^\s:]+))*"
    r"(?P<is>\s+(?:is|was|are|were)|:)?\s+)"
    r"(?P<value>[\"'`][^\"'`]+[\"'`]|[^\s,;\"'`]+)",
    re.IGNORECASE,
)
_ESCAPE = re.compile(r"\x1b\[[\d;]*m")
"""Of colours, which stand between a name and its value."""
_REFUSED = re.compile(
    r"(?P<before>\b(?:password|passphrase|passcode|secret|credential|(?:api|access|auth|"
    r"private)[ _-]?(?:key|token))s?\b(?:[^'\"]|'\w+'){0,120}?"
    r"(?:\b(?:got|received|not|was)\s+|\binput_value=|\b(?:value|choice):\s+))"
    r"(?P<value>'[^']*'|\"[^\"]*\")",
    re.IGNORECASE,
)
"""`password must be bytes, got 'X'`, and as pydantic and argparse say it."""
_BEARER = re.compile(r"\b(?P<before>bearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_BASIC = re.compile(r"\b(?P<before>(?i:basic)\s+)(?=\S*[0-9A-Z=])[A-Za-z0-9+/]{6,}=*")
_MIXED = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])[\w+/=-]{6,}|(?=.*\w).*[!@#$%^&*].*")
_SCHEME = re.compile(r"(?:bearer|basic|token)\s+\S+$", re.IGNORECASE)
_TOKENS = re.compile(r"[+-]*tokens", re.IGNORECASE)
_COUNTS = re.compile(r"[\d.,_+-]+(?:[eE][\d+-]+|[kKmMbBtT])?")
"""Of `--tokens 4096`, and no other is shown behind it."""

_BETWEEN = ("=", ":", ":=")
"""`--password = X`, with blanks around."""
_PLAIN_NAME = re.compile(r"[a-z_-]+")
_TAKES_PASSWORD = re.compile(rf"(?:^|/){TAKING_PASSWORDS}$")
_LEAST_NAMED = 8
_LEAST_WEAK = 8
"""Characters of a mixed word that behind a mere "token" or "key" is one."""


def environment(variables: Mapping[str, Any]) -> dict[str, str]:
    """The variables that explain a run, without secrets."""
    kept = [
        (name, value)
        for name, value in sorted(variables.items())
        if isinstance(value, str) and _KEPT.fullmatch(name)
    ]
    known = known_secrets() if kept else ()
    return {
        name: HIDDEN if is_secret_name(name) else text(value, known)
        for name, value in kept
    }


def command(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without secrets."""
    known = known_secrets()
    return tuple(_arguments(argv, known))


def text(words: str, known: Iterable[str] | None = None) -> str:
    """Words of a message, or a line of code, without secrets; `known_secrets` may be
    given where there are many texts.
    """
    return _cleaned(_cut(words), known_secrets() if known is None else known)


def _own_arguments() -> list[str]:
    """Of this process; a script may take its part away, or put things into it."""
    there: list[Any] = [*(getattr(sys, "argv", None) or ()), *sys.orig_argv]
    return [argument for argument in there if isinstance(argument, str)]


def known_secrets(
    argv: Sequence[str] | None = None, variables: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """What this process was given under a secret's name, the longest first: hidden
    wherever it turns up, however it is called there.
    """
    argv = _own_arguments() if argv is None else argv
    variables = os.environ if variables is None else variables
    variables = {n: v for n, v in variables.items() if isinstance(v, str)}
    found = {value for n, value in variables.items() if is_secret_name(n)}
    before = ""
    for argument, hidden in _marked(argv):
        name, _, value = argument.partition("=")
        if hidden and (
            not PASSWORD_OPTION.fullmatch(before) or _MIXED.fullmatch(argument)
        ):
            found.add(argument)  # `-p bf16` may be a precision
        elif value and is_secret_name(name):
            found.add(value)
        before = argument
    for before, argument in pairwise(argv):
        if (said := behind_option(before, argument)) is not None:
            found.add(said["value"])
    for value in (*argv, *variables.values()):
        found.update(_told_in(str(value)))
    return tuple(sorted(filter(_is_telling, found), key=len, reverse=True))


@functools.lru_cache(maxsize=512)
def _told_in(value: str) -> frozenset[str]:
    """What a value tells. Asked again for each header, of what hardly changes."""
    return frozenset((*_passwords_in(value), *_named_in(value)))


def _passwords_in(value: str) -> Iterator[str]:
    for login in _LOGIN.finditer(_cut(value)):
        yield login[0].rstrip("@").rpartition(":")[2].rpartition("/")[2]


def _named_in(value: str) -> Iterator[str]:
    """What has a secret's name within a value, as in JSON; short words are left out,
    which code that a shell keeps in a variable has as well.
    """
    for named in values_in(_cut(value)):
        word = named.split()[-1] if _SCHEME.match(named) else named
        if len(word) >= _LEAST_NAMED and not word.startswith(("$", "{", "[", "(")):
            yield word


def _is_telling(value: str) -> bool:
    """Whether a value is no everyday word, number or path, which would be hidden in
    places that have nothing to do with it.
    """
    if value.startswith(("/", "./", "~")):
        return False
    if _PLAIN_NAME.fullmatch(value) and is_secret_name(value):
        return False  # AUTH_METHOD=password: without the word no name is seen
    return len(value) >= (4 if not value.isalnum() else 6) or (
        len(value) >= 4 and not value.isdecimal() and not value.isalpha()
    )


def _marked(argv: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Each argument, and whether an option before it says that it is a secret."""
    hide_next = hide_all = tokens = False
    for argument in argv:
        if argument in _BETWEEN and (hide_next or hide_all):
            yield argument, False
            continue
        password = PASSWORD_OPTION.fullmatch(argument) is not None
        is_option = argument.startswith("--") or argument in ("-h", "-m", "-c")
        if (hide_next or hide_all) and not (is_option or password):
            shown = is_answer(argument) or (tokens and _COUNTS.fullmatch(argument))
            yield argument, not shown
            # --auth Bearer abc
            hide_next = argument.lower() in ("bearer", "basic", "token", "digest")
            continue
        yield argument, False
        name = argument.lstrip("-").rstrip(":")
        tokens = argument.lower() == "--tokens"
        says = is_secret_name if argument.startswith("-") else is_always_secret
        secret = "=" not in argument and ":" not in name and says(name)
        secret = secret or tokens
        hide_next = secret or password
        hide_all = secret and argument.startswith("-") and name.endswith("s")


def _arguments(argv: Sequence[str], known: Iterable[str]) -> Iterator[str]:
    before = ""
    of_password = False
    for argument, hidden in _marked(argv):
        said = behind_option(before, argument)
        if hidden:
            yield HIDDEN
        elif said is not None:
            yield f"{said['user']}{HIDDEN}"
        elif of_password and re.match(r"-p.", argument):
            yield f"-p{HIDDEN}"
        else:
            yield _argument(argument, known)
        before = argument
        of_password = of_password or _TAKES_PASSWORD.search(argument) is not None


def _argument(argument: str, known: Iterable[str]) -> str:
    argument = _cut(argument)
    name, separator, value = argument.partition("=")
    is_name = re.fullmatch(r"[\w.+\[\]-]+", name) is not None
    if (
        separator
        and is_name
        and (is_secret_name(name) or PASSWORD_OPTION.fullmatch(name))
    ):
        return argument if is_answer(value) else f"{name}={HIDDEN}"
    if separator and (said := behind_option(name, value)):  # --user=me:X
        return f"{name}={said['user']}{HIDDEN}"
    if re.match(r"-[pP](?=.*[^a-z-])", argument):
        return f"{argument[:2]}{HIDDEN}"
    if _TOKENS.fullmatch(name) and separator and not _COUNTS.fullmatch(value):
        return f"{name}={HIDDEN}"
    if is_name and value.strip("="):  # else it may be a text in base64
        return f"{_cleaned(name, known)}={_value(value, known)}"
    return _value(argument, known)


def _value(value: str, known: Iterable[str]) -> str:
    if value.lstrip().startswith(("{", "[")):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return _cleaned(value, known)
        return json.dumps(_without(parsed, known))
    return _cleaned(value, known)


def _without(value: object, known: Iterable[str]) -> object:
    if isinstance(value, dict):
        called = any(
            isinstance(name := value.get(key), str) and is_secret_name(name)
            for key in ("name", "key", "header")
        )
        return {
            _cleaned(str(name), known): HIDDEN
            if is_secret_name(str(name)) or (called and name in ("value", "val"))
            else _without(v, known)
            for name, v in value.items()
        }
    if isinstance(value, list):
        if value and all(isinstance(item, str) for item in value):
            return list(_arguments(value, known))
        return [_without(item, known) for item in value]
    return _cleaned(value, known) if isinstance(value, str) else value


def _cut(words: str) -> str:
    """Whole words of the first `MOST_TEXT` characters: half a secret is still one."""
    if len(words) <= MOST_TEXT:
        return words
    whole = words[:MOST_TEXT].rpartition(" ")[0]
    return whole or f"<a word of {len(words):,} characters, left out>"


def _cleaned(words: str, known: Iterable[str]) -> str:
    words = _by_rule(words, known)
    return _WORD.sub(lambda word: _encoded(word[0], known), words)


def _by_rule(words: str, known: Iterable[str]) -> str:
    words = _ESCAPE.sub("", words)
    for secret in known:
        if secret in words:
            words = words.replace(secret, HIDDEN)
    words = _LOGIN.sub(_login, words)
    words = _QUERY.sub(_query, words)
    words = without_known_shapes(words, HIDDEN)
    words = hide_values(words, HIDDEN)
    words = _PROSE.sub(_prose, words)
    words = _REFUSED.sub(rf"\g<before>{HIDDEN}", words)
    words = _BEARER.sub(rf"\g<before>{HIDDEN}", words)
    words = _BASIC.sub(rf"\g<before>{HIDDEN}", words)
    return without_random_runs(words, HIDDEN)


def _encoded(word: str, known: Iterable[str]) -> str:
    """A word as it stands in an address, hidden if what it says would be."""
    if not _ENCODED.search(word):
        return word
    plain = word
    for _ in range(_MOST_ENCODED):
        plain = unquote(plain)
    return word if _by_rule(plain, known) == plain else HIDDEN


def _login(found: re.Match[str]) -> str:
    before = found["before"] or found["user"] or found["oracle"]
    return f"{before}{HIDDEN}@"


def _query(found: re.Match[str]) -> str:
    return found["before"] + _QUERY_VALUE.sub(f"={HIDDEN}", found["query"])


def _prose(found: re.Match[str]) -> str:
    value = found["value"]
    bare = value.strip("\"'`.()[]{}")
    if bare == HIDDEN or bare.startswith("<") or is_answer(bare):
        return found[0]
    sure = found["is"] is not None or value[0] in "\"'`("
    weak = found["weak"] is not None
    mixed = _MIXED.fullmatch(bare) and (not weak or len(bare) >= _LEAST_WEAK)
    if (sure and not weak) or mixed:
        return found[0][: found.start("value") - found.start()] + HIDDEN
    return found[0]
