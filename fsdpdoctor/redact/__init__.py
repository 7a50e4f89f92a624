"""Keeps secrets out of what is written: the one place, for every writer.

`docs/secrets.md` is this rule in words. What is hidden too often costs a word of a
command line; what is hidden too seldom costs an account: in doubt it is hidden.
Standard library only: the recorder carries it into other people's trainings.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from fsdpdoctor.redact.secret_names import is_secret_name

HIDDEN = "<redacted>"

MOST_TEXT = 1 << 16
"""Characters of a text that are looked at; the rest is cut, not written."""

_KEPT = re.compile(
    r"CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING|NCCL_\w+|TORCH_NCCL_\w+"
    r"|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|OMP_NUM_THREADS"
    r"|TORCH_DISTRIBUTED_DEBUG|ACCELERATE_USE_FSDP|ACCELERATE_USE_CPU|FSDP_VERSION"
)
"""The environment variables that explain a run; no other is written."""

_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:.*?-----END [A-Z ]*PRIVATE KEY-----|.*)"
    r"|(?<![\w-])(?:hf|api_org|gh[pousr]|github_pat|glpat|gldt|glrt|npm|pypi|dop_v1|shpat|shpss"
    r"|dckr_pat|wandb_v1|gsk|r8|ntn|lin_api|nvapi|dapi|pul|xkeysib|rpa)"
    r"[_-][A-Za-z0-9_-]{8,}"
    r"|(?<![\w-])(?:sk|rk|pk)[_-][A-Za-z0-9_-]{8,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{8,}|\bxapp-[A-Za-z0-9-]{8,}"
    r"|\b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA|ANPA)[0-9A-Z]{12,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|\bya29\.[A-Za-z0-9_-]{8,}|\bGOCSPX-[A-Za-z0-9_-]{8,}"
    r"|\bdapi[0-9a-f]{16,}|\bSG\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r"|\bhv[sbr]\.[A-Za-z0-9_-]{8,}|\bdp\.[a-z]{2}\.[A-Za-z0-9]{8,}"
    r"|\b\d{8,10}:[A-Za-z0-9_-]{30,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*){0,2}"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+|(?<=/api/webhooks/)[\w/-]+"
    r"|\b[0-9a-fA-F]{32,}\b",  # keys of many services; a digest is lost with them
    re.DOTALL,
)
"""What secrets of well-known services look like, wherever they stand."""

_RUN = re.compile(r"(?<![A-Za-z0-9+_=-])[A-Za-z0-9+_=-]{20,}(?![A-Za-z0-9+_=-])")
_FORTY = re.compile(
    r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+][A-Za-z0-9+/]{39}(?![A-Za-z0-9+/])"
)
_TURN = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_LONGEST_TURN = 2.75
_LONGEST_TURN_OF_TWO = 3.5
"""Characters between turns from lower case to upper case to digits: 1.6 in random ones
of all three kinds, 2.5 without capitals; `TransformerEncoderLayer2Forward` has 3.4."""

_LOGIN = re.compile(
    r"(?P<before>\w[\w+.-]*://)"
    r"(?:[^\s/@:\"'<]*:(?!\d{1,5}/)[^\s\"'<]*|[^\s/@\"'<]*)@"
    r"|(?<![\w.:/@-])(?P<user>[\w.+-]+:)[^\s/@\"'<:]+@(?=[\w\[])"
    r"|(?P<oracle>jdbc:oracle:\w+:[\w.-]+/)[^\s/@\"'<]+@"
)
"""`scheme://login@host`, `login:password@host`."""

_QUERY = re.compile(r"(?P<before>\w://[^\s\"'?<]*\?)(?P<query>[^\s\"'<]*)")
_QUERY_VALUE = re.compile(r"=[^&;#]*")

_NAME = r"(?<![\w.\-])(?P<name>[\w.\-]+)"
_ASSIGNED = re.compile(
    rf"(?P<open>\\*[\"'`]?){_NAME}(?:"
    # name = value, "name": value, name["x"] = value
    r"(?P<mid>\\*[\"'`]?\]?\s{0,4}(?:=>|:=|==|=|:)\s{0,4})"
    # 'name', 'value'; --name value
    r"|(?P<pair>\\*[\"']\)?\s{0,4},\s{0,4}(?=\\*[\"']))"
    r"|(?P<gap>(?<=[\w])\s{1,4}(?=[^\s-])))"
)
_VALUE = re.compile(
    r"[bfru]{0,2}(?P<quote>\\*[\"'`])(?:.*?(?<!\\)(?P=quote)|.*)"
    r"|\[.*?(?:\]|$)|\{.*?(?:\}|$)|\(.*?(?:\)|$)"
    r"|(?:bearer|basic|token|digest|negotiate)\s+[^\s\"'`,;]+"
    r"|[^\s\"'`,;&)}\]]+",
    re.DOTALL | re.IGNORECASE,
)
_WHOLE_LINE = re.compile(r"authorization|cookie", re.IGNORECASE)
"""Headers whose value has blanks: hidden up to the quote they are in, or the end."""

_PASSWORD_OPTION = re.compile(r"-[pP]")
_PROSE = re.compile(
    r"\b(?P<word>pass(?:word|phrase|code|wd)|pwd|secret|credentials?"
    r"|(?:api|access|auth|secret|private|bearer|refresh|session)[ _-]?(?:key|token)"
    r"|(?P<weak>token|key))s?"
    r"(?P<mid>(?:\s+(?:provided|given|supplied|used|value|of|for\s+\S+))*"
    r"(?P<is>\s+(?:is|was|are|were)|:)?\s+)"
    r"(?P<value>[\"'`][^\"'`]+[\"'`]|[^\s,;\"'`]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(?P<before>bearer\s+)[\w.~+/=-]{6,}", re.IGNORECASE)
_BASIC = re.compile(r"\b(?P<before>(?i:basic)\s+)(?=\S*[0-9A-Z=])[A-Za-z0-9+/]{6,}=*")
_MIXED = re.compile(r"(?=.*[A-Za-z])(?=.*[0-9])[\w+/=-]{6,}|(?=.*\w).*[!@#$%^&*].*")
_LEAST_WEAK = 8
"""Characters of a mixed word that behind a mere "token" or "key" is one."""


def environment(variables: Mapping[str, Any]) -> dict[str, str]:
    """The variables that explain a run, without secrets."""
    return {
        name: HIDDEN if is_secret_name(name) else text(value)
        for name, value in sorted(variables.items())
        if isinstance(value, str) and _KEPT.fullmatch(name)
    }


def command(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without secrets."""
    known = known_secrets()
    return tuple(
        HIDDEN if hidden else _argument(argument, known)
        for argument, hidden in _marked(argv)
    )


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
    for argument, hidden in _marked(argv):
        name, _, value = argument.partition("=")
        if hidden:
            found.add(argument)
        elif value and is_secret_name(name):
            found.add(value)
    for value in (*argv, *variables.values()):
        found.update(_passwords_in(value))
    return tuple(sorted(filter(_is_telling, found), key=len, reverse=True))


def _passwords_in(value: str) -> Iterator[str]:
    for login in _LOGIN.finditer(_cut(value)):
        yield login[0].rstrip("@").rpartition(":")[2].rpartition("/")[2]


def _is_telling(value: str) -> bool:
    """Whether a value is no everyday word, number or path, which would be hidden in
    places that have nothing to do with it.
    """
    if value.startswith(("/", "./", "~")):
        return False
    return len(value) >= (4 if not value.isalnum() else 6) or (
        len(value) >= 4 and not value.isdecimal() and not value.isalpha()
    )


def _marked(argv: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Each argument, and whether an option before it says that it is a secret."""
    hide_next = hide_all = False
    for argument in argv:
        is_option = argument.startswith("--") or argument in ("-h", "-m", "-c")
        if (hide_next or hide_all) and not is_option:
            yield argument, True
            # --auth Bearer abc
            hide_next = argument.lower() in ("bearer", "basic", "token", "digest")
            continue
        yield argument, False
        name = argument.lstrip("-")
        secret = "=" not in argument and ":" not in argument and is_secret_name(name)
        hide_next = secret or _PASSWORD_OPTION.fullmatch(argument) is not None
        hide_all = secret and argument.startswith("-") and name.endswith("s")


def _argument(argument: str, known: Iterable[str]) -> str:
    argument = _cut(argument)
    name, separator, value = argument.partition("=")
    is_name = re.fullmatch(r"[\w.+\[\]-]+", name) is not None
    if (
        separator
        and is_name
        and (is_secret_name(name) or _PASSWORD_OPTION.fullmatch(name))
    ):
        return f"{name}={HIDDEN}"
    if re.match(r"-[pP](?=.*[^a-z-])", argument):
        return f"{argument[:2]}{HIDDEN}"
    if separator and is_name:
        return f"{name}={_value(value, known)}"
    return _value(argument, known)


def _value(value: str, known: Iterable[str]) -> str:
    if value.lstrip().startswith(("{", "[")):
        try:
            parsed = json.loads(value)
        except (ValueError, RecursionError):
            return _cleaned(value, known)
        return json.dumps(_without(parsed, lambda said: _cleaned(said, known)))
    return _cleaned(value, known)


def _without(value: object, clean: Callable[[str], str]) -> object:
    if isinstance(value, dict):
        return {
            clean(str(name)): HIDDEN
            if is_secret_name(str(name))
            else _without(v, clean)
            for name, v in value.items()
        }
    if isinstance(value, list):
        return [_without(item, clean) for item in value]
    return clean(value) if isinstance(value, str) else value


def _cut(words: str) -> str:
    """Whole words of the first `MOST_TEXT` characters: half a secret is still one."""
    if len(words) <= MOST_TEXT:
        return words
    return words[:MOST_TEXT].rpartition(" ")[0]


def _cleaned(words: str, known: Iterable[str]) -> str:
    for secret in known:
        if secret in words:
            words = words.replace(secret, HIDDEN)
    words = _LOGIN.sub(_login, words)
    words = _QUERY.sub(_query, words)
    words = _SHAPES.sub(HIDDEN, words)
    words = _assigned(words)
    words = _PROSE.sub(_prose, words)
    words = _BEARER.sub(rf"\g<before>{HIDDEN}", words)
    words = _BASIC.sub(rf"\g<before>{HIDDEN}", words)
    words = _RUN.sub(_random, words)
    return _FORTY.sub(_random, words)


def _login(found: re.Match[str]) -> str:
    before = found["before"] or found["user"] or found["oracle"]
    return f"{before}{HIDDEN}@"


def _query(found: re.Match[str]) -> str:
    return found["before"] + _QUERY_VALUE.sub(f"={HIDDEN}", found["query"])


def _assigned(words: str) -> str:
    """Hide what stands behind each secret's name."""
    parts: list[str] = []
    at = 0
    while found := _ASSIGNED.search(words, at):
        parts.append(words[at : found.end()])
        at = found.end()
        name = found["name"]
        option = name.startswith("-")
        if found["gap"] is not None and not option:
            continue
        secret = _is_secret(words, found) or (
            found["mid"] is None and _PASSWORD_OPTION.fullmatch(name) is not None
        )
        value = _VALUE.match(words, at) if secret else None
        if value is None:
            continue
        quote = value["quote"] or ""
        at = value.end()
        if _WHOLE_LINE.search(name) and not quote:
            at = _end_of_quoted(words, found["open"], at)
        closed = quote if quote and words[:at].endswith(quote) else ""
        parts.append(f"{quote}{HIDDEN}{closed}")
    return "".join((*parts, words[at:]))


def _is_secret(words: str, found: re.Match[str]) -> bool:
    """By its name, and the word before it: a `forward pass:` is none."""
    name, start = found["name"], found.start()
    if not is_secret_name(name):
        return False
    before = re.search(r"(\w+) $", words[max(0, start - 32) : start])
    return before is None or is_secret_name(f"{before[1]} {name}")


def _end_of_quoted(words: str, quote: str, at: int) -> int:
    end = words.find(quote, at) if quote else words.find("\n", at)
    return len(words) if end < 0 else end


def _prose(found: re.Match[str]) -> str:
    value = found["value"]
    bare = value.strip("\"'`.")
    if bare == HIDDEN or bare.startswith("<"):
        return found[0]
    sure = found["is"] is not None or value[0] in "\"'`"
    weak = found["weak"] is not None
    mixed = _MIXED.fullmatch(bare) and (not weak or len(bare) >= _LEAST_WEAK)
    if (sure and not weak) or mixed:
        return found[0][: found.start("value") - found.start()] + HIDDEN
    return found[0]


def _random(found: re.Match[str]) -> str:
    said = found[0]
    turns = _TURN.findall(said)
    if not turns or not any(map(str.isdigit, turns)):
        return said
    turn = sum(map(len, turns)) / len(turns)
    kinds = any(map(str.isupper, turns)) + any(map(str.islower, turns)) + 1
    if kinds == 2:
        return HIDDEN if said.isalnum() and turn <= _LONGEST_TURN_OF_TWO else said
    return HIDDEN if kinds == 3 and turn <= _LONGEST_TURN else said
