"""What stands behind a secret's name: where it begins, and where it ends.

`docs/secrets.md` is this rule in words. Standard library only: the recorder uses it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fsdpdoctor.redact.secret_names import is_always_secret, is_secret_name

PASSWORD_OPTION = re.compile(r"-[pP]")
TAKING_PASSWORDS = (
    r"(?:mysql\w{0,20}|mariadb[\w-]{0,20}|sshpass|7z[arz]{0,2}|(?:un)?rar)"
)
"""Programs whose `-pX` is one, in small letters, too."""
LOGIN_OPTION = re.compile(r"-[uU]|--(?:user|proxy-user|http-user|login|basic-auth)")
LOGIN = re.compile(r"(?P<user>[^\s:\"'=/<]+:)(?P<value>(?!//)[^\s\"'@<]+)")
"""`user:password`, behind such an option."""
COOKIE_OPTION = re.compile(r"-b")
COOKIE = re.compile(r"(?P<user>\w*(?:sess|auth)\w*=)(?P<value>[^\s;\"'<]+)")
"""`session=value`, behind such an option, curl's for cookies."""

_NAME = r"(?<![\w.\-])(?P<name>[\w.\-]+)"
_ASSIGNED = re.compile(
    rf"(?P<open>\\*[\"'`]?){_NAME}(?:"
    # name = value, "name": value, name["x"] = value, name | value
    r"(?P<mid>\\*[\"'`]?\]?\s{0,4}(?:=>|->|:=|::|[!=]=|=|:|\||\t)\s{0,4})"
    # 'name', 'value'; --name value
    r"|(?P<pair>\\*[\"']\)?\s{0,4},\s{0,4}(?=\\*[bfru]{0,2}[\"'])"
    r"(?!\\*[\"'][\w.-]{1,99}\\*[\"']\s*:))"
    # what is taken instead: get('name') or 'value'
    r"|(?P<else>\\*[\"'][\])]?\s{1,4}or\s{1,4}(?=\\*[bfru]{0,2}[\"']))"
    r"|(?P<gap>(?<=[\w])\s{1,4}(?=[^\s-])))"
)
_NAMED = re.compile(
    r"\\*[\"']?\b(?:name|key|header)\\*[\"']?\s{0,4}[:=]\s{0,4}"
    r"\\*[\"'](?P<name>[\w.\-]+)\\*[\"']\s{0,4},?\s{0,4}"
    r"(?:\\*[\"']\w{1,99}\\*[\"']:\s{0,4}\\*[\"'][^\"'\\]{0,99}\\*[\"'],\s{0,4}){0,3}"
    r"\\*[\"']?val(?:ue)?\\*[\"']?\s{0,4}[:=]\s{0,4}",
    re.IGNORECASE,
)
"""`"name": "DB_PASSWORD", "value": ` and `key="ApiKey" value=`."""
_LISTED = re.compile(
    r"\b(?:name|key|header):[ \t]{1,4}(?P<quoted>[\"']?)(?P<name>[\w.\-]+)(?P=quoted)"
    r"[ \t]{0,4}\n[ \t]{0,40}val(?:ue)?:[ \t]{1,4}",
    re.IGNORECASE,
)
"""`- name: DB_PASSWORD` with `value: ` below it, as YAML has it."""

_ELEMENT = re.compile(r"<(?P<name>[\w.:-]+)(?:\s[^<>]{0,500})?>(?P<value>[^<>]+)(?=</)")
_PLACES = (
    re.compile(r"\blogin\s+\S+\s+password\s+(?P<value>\S+)"),  # .netrc
    re.compile(  # .pgpass
        r"(?<![\w.:/-])(?:[\w.-]{1,99}|\*):(?:\d{2,5}|\*):[\w*-]{1,99}:[\w*.-]{1,99}:"
        r"(?P<value>[^\s:\"'<]+)"
    ),
    re.compile(r"[?&;]sig=(?P<value>[^\s&;\"'<]+)"),
    re.compile(
        rf"(?<![\w-])(?:{LOGIN_OPTION.pattern})(?:\s+|=|[\"'],\s*)[\"']?{LOGIN.pattern}"
    ),
    re.compile(
        r"(?<=\s)-[pP](?P<value>(?=[^\s\"']*[^a-z\s\"'-])[^\s\"'<-][^\s\"']{3,})"
    ),
    # Of these programs in small letters, too, which of others is an option.
    re.compile(
        rf"\b{TAKING_PASSWORDS}\s[^\n|;&]{{0,200}}?(?<=\s)"
        r"-h?p(?P<value>[^\s\"'<-][^\s\"']{3,})"
    ),
    re.compile(
        r"\b(?:redis-cli\s[^\n|;&]{0,200}?(?<=\s)-a|ldap\w{3,9}\s[^\n|;&]{0,200}?(?<=\s)-w"
        r"|openssl\s[^\n|;&]{0,200}?(?<=\s)-[kK]"
        r"|openssl\s[^\n|;&]{0,200}?(?<=\s)-pass(?:in|out)?\s+pass:)"
        r"\s*(?<=[\s:])(?P<value>[^\s\"'<-][^\s\"']*)"
    ),
    re.compile(r"(?<=\s)/p(?:ass|assword)?:(?P<value>[^\s\"'<]{4,})", re.IGNORECASE),
    re.compile(
        rf"(?<![\w-]){COOKIE_OPTION.pattern}(?:\s+|[\"'],\s*)[\"']?{COOKIE.pattern}"
    ),
    # A password with blanks, in the address of what is no page.
    re.compile(
        r"\b(?:postgres(?:ql)?|mysql|mariadb|mongodb|rediss?|amqps?|mssql|oracle|ftps?"
        r"|clickhouse|smb|ldaps?)(?:\+\w{1,20})?://[^\s/@:\"'<]{0,200}:"
        r"(?P<value>[^\n@\"'<]{0,200}\s[^\n@\"'<]{0,200})@"
    ),
)
"""Where a password stands in files and on command lines, without its name."""

_SETS = re.compile(
    r"\b(?:setx|setenv|export|(?:configure|config)\s{1,4}set|set\s{1,4}-\w{1,4})\s{1,4}$"
)
"""Commands that take a name and its value."""

_QUOTED = re.compile(
    r"[bfru]{0,2}(?P<quote>'''|\"\"\"|\\*[\"'`])(?:.*?(?<!\\)(?P=quote)|.*)",
    re.DOTALL | re.IGNORECASE,
)
_BARE = re.compile(
    r"(?:bearer|basic|token|digest|negotiate)\s+[^\s\"'`,;]+"
    r"|[^\s\"'`,;&()\[\]{}]+",
    re.IGNORECASE,
)
_ADDED = re.compile(
    r"\s{0,4}\+\s{0,4}(?=[\w\"'`(\[{])|\s{1,4}or\s{1,4}(?=[bfru]{0,2}[\"'])"
    # 'value' if there else 'value'; of a type: str | None = 'value'
    r"|\s{1,4}if\s[^\n]{1,200}?\selse\s{1,4}(?=[bfru]{0,2}[\"'])"
    r"|(?:\s{1,4}\|\s{1,4}None)?\s{0,4}=\s{0,4}(?=[bfru]{0,2}[\"'])"
)
_ADDED_TO = re.compile(r"(?=[\"'(\[{])")
_CALL = re.compile(r"(?<!\w)(?P<name>\w{1,99})\(")
_LITERAL = re.compile(r"(?P<quote>[\"'])(?P<value>[^\"'\n]+)(?P=quote)(?!\s*[:\]])")
"""What a call is given: `set_password('bob', 'X')`; not what names a place."""

_BLOCK = re.compile(
    r"[|>][+-]?\d?[ \t]*\n(?P<indent>[ \t]+)[^\n]*(?:\n(?P=indent)[^\n]*)*"
    r"|-[ \t]+[^\n]+(?:\n\s*-[ \t]+[^\n]+)*"
)
"""Of YAML: a text of several lines, and a list of one in each."""

_BRACKETS = re.compile(r"[()\[\]{}]")
_BRACKETS_OF_CODE = re.compile(
    r"[()\[\]{}]|'(?:\\.|[^'\\]){0,500}'|\"(?:\\.|[^\"\\]){0,500}\"", re.DOTALL
)
_OPENING = "([{"
_WHOLE_LINE = re.compile(r"authorization|cookie", re.IGNORECASE)
"""Headers whose value has blanks: hidden up to the quote they are in, or the end."""


_ANSWER = re.compile(r"(?:true|false|none|null|yes|no|on|off)(?![\w.-])", re.IGNORECASE)
"""`--use-auth-token true`: no secret is called so."""


def is_answer(value: str) -> bool:
    """Whether a value only says yes or no."""
    return _ANSWER.fullmatch(value) is not None


class _Value(NamedTuple):
    begin: int
    end: int
    opened: str  # the quote that it is in, or none
    closed: str  # the same where it ends


def behind_option(option: str, argument: str) -> re.Match[str] | None:
    """A login or a cookie, behind the option that takes one."""
    for taking, form in ((LOGIN_OPTION, LOGIN), (COOKIE_OPTION, COOKIE)):
        if taking.fullmatch(option) and (found := form.fullmatch(argument)):
            return found
    return None


def hide_values(words: str, hidden: str) -> str:
    """Hide what stands behind each secret's name, and where passwords stand."""
    for pattern in (_NAMED, _LISTED, _ASSIGNED):
        parts: list[str] = []
        at = 0
        for value in _values(words, pattern):
            shown = f"{value.opened}{hidden}{value.closed}"
            parts += (words[at : value.begin], shown)
            at = value.end
        words = "".join((*parts, words[at:]))
    words = _with_calls_hidden(words, hidden)
    words = _ELEMENT.sub(lambda f: _place(f, hidden) if _is_named(f) else f[0], words)
    for place in _PLACES:
        words = place.sub(lambda found: _place(found, hidden), words)
    return words


def _with_calls_hidden(words: str, hidden: str) -> str:
    """Without the literals that a call of a secret's name is given."""
    parts: list[str] = []
    at = 0
    for call in _CALL.finditer(words):
        if call.end() <= at or not is_always_secret(call["name"]):
            continue
        end = _end_of_bracket(words, call.end() - 1)
        inside = words[call.end() : end]
        shown = _LITERAL.sub(lambda found: _place(found, hidden), inside)
        parts += (words[at : call.end()], shown)
        at = end
    return "".join((*parts, words[at:]))


def values_in(words: str) -> Iterator[str]:
    """What `hide_values` hides."""
    for pattern in (_NAMED, _ASSIGNED):
        for value in _values(words, pattern):
            yield words[value.begin : value.end].strip("bfru\\\"'`")
    for place in _PLACES:
        for found in place.finditer(words):
            yield found["value"]


def _is_named(found: re.Match[str]) -> bool:
    return is_secret_name(found["name"])


def _place(found: re.Match[str], hidden: str) -> str:
    begin, end = (at - found.start() for at in found.span("value"))
    return f"{found[0][:begin]}{hidden}{found[0][end:]}"


def _values(words: str, pattern: re.Pattern[str]) -> Iterator[_Value]:
    at = 0
    while found := pattern.search(words, at):
        begin = at = found.end()
        named = pattern is not _ASSIGNED
        secret = _is_named(found) if named else _is_secret(words, found)
        end = _end_of_value(words, begin) if secret else begin
        if end == begin or _ANSWER.fullmatch(words, begin, end):
            continue
        quoted = _QUOTED.match(words, begin)
        quote = quoted["quote"] if quoted else ""
        if _WHOLE_LINE.search(found["name"]) and not quote:
            end = _end_of_quoted(words, found.groupdict().get("open") or "", end)
        at = end
        yield _Value(begin, end, quote, quote if _is_closed(quoted) else "")


def _is_closed(quoted: re.Match[str] | None) -> bool:
    if quoted is None:
        return False
    behind = quoted[0][quoted.end("quote") - quoted.start() :]
    return behind.endswith(quoted["quote"])


def _is_secret(words: str, found: re.Match[str]) -> bool:
    """By its name, and the word before it: a `forward pass:` is none."""
    name, start = found["name"], found.start()
    if found["gap"] is not None and not name.startswith("-"):
        line = words[max(0, start - 32) : start]
        return _SETS.search(line) is not None and is_secret_name(name)
    if found["mid"] is None and PASSWORD_OPTION.fullmatch(name):
        return True
    if not is_secret_name(name):
        return False
    before = re.search(r"(\w+) $", words[max(0, start - 32) : start])
    return before is None or is_secret_name(f"{before[1]} {name}")


def _end_of_value(words: str, at: int) -> int:
    """Past a literal, a call or a bracketed value, and what is added to it."""
    while True:
        at, quote = _end_of_term(words, at)
        added = _ADDED_TO if words[at - 1 : at] == "+" else _ADDED
        more = added.match(words, at)
        if more is None and quote:  # literals of one quote side by side are one
            beside = rf"\s{{1,4}}(?=[bfru]{{0,2}}{re.escape(quote)})"
            more = re.compile(beside).match(words, at)
        if more is None:
            return at
        at = more.end()


def _end_of_term(words: str, at: int) -> tuple[int, str]:
    """Where it ends, and the quote that it is in."""
    if quoted := _QUOTED.match(words, at):
        return quoted.end(), quoted["quote"]
    if block := _BLOCK.match(words, at):
        return block.end(), ""
    begin = at
    while at < len(words):
        if words[at] in _OPENING:
            at = _end_of_bracket(words, at)
        elif (at == begin or words[at] == ".") and (bare := _BARE.match(words, at)):
            at = bare.end()
        else:
            break
    return at, ""


def _end_of_bracket(words: str, at: int) -> int:
    for pattern in (_BRACKETS_OF_CODE, _BRACKETS):
        depth = 0
        for found in pattern.finditer(words, at):
            if len(found[0]) > 1:
                continue
            depth += 1 if found[0] in _OPENING else -1
            if not depth:
                return found.end()
    return len(words)


def _end_of_quoted(words: str, quote: str, at: int) -> int:
    end = words.find(quote, at) if quote else words.find("\n", at)
    return len(words) if end < 0 else end
