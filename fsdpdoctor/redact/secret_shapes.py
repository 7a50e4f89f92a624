"""What secrets look like wherever they stand, under no name at all.

`docs/secrets.md` is this rule in words. Standard library only: the recorder uses it.
"""

from __future__ import annotations

import re
from binascii import Error, a2b_base64

KEY_BEGINS = re.compile(r"-{4,5} ?BEGIN [A-Z0-9 ]*PRIVATE KEY[A-Z ]*-{4,5}")
KEY_ENDS = re.compile(r"-{4,5} ?END ")

_SHAPES = re.compile(
    rf"{KEY_BEGINS.pattern}(?:.*?{KEY_ENDS.pattern}[A-Z0-9 ]*-{{4,5}}|.*)"
    r"|\bPuTTY-User-Key-File-.*"
    r"|(?<![\w-])(?:hf|api_org|gh[pousr]|github_pat|npm|pypi|dop_v1|shp(?:at|ss|ca|pa)"
    r"|gl(?:pat|dt|rt|cbt|ptt|ft|soat|oas|agent|imt|sa|c)|dckr_pat|wandb_v1|gsk|r8|ntn"
    r"|lin_api|nvapi|dapi|pul|xkeysib|rpa|whsec|tskey|figd|xai|pplx|PMAK|CFPAT|sntry[su]"
    r"|sgp|NRAK|NRII|shippo_(?:live|test)|pscale_(?:pw|tkn|oauth)|sq0[a-z]{3}|FLWSECK"
    r"|rdme|tfp|duffel|AGE-SECRET-KEY)[_-][A-Za-z0-9_-]{8,}"
    r"|(?<![\w-])A[TC]ATT3x[A-Za-z0-9_=-]{8,}"
    r"|(?<![\w-])(?:sk|rk|pk)[_-][A-Za-z0-9_-]{8,}"
    r"|(?<![\w-])(?:secret_|ph[cx]_|key-)(?=[A-Za-z_]*[0-9])[A-Za-z0-9]{16,}"
    r"|(?<![\w-])(?:LTAI|AKCp|AKID|EAAC|EAAB|oy2)(?=[A-Za-z]*[0-9])[A-Za-z0-9]{10,}"
    r"|(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{20,}"
    r"|\bops_eyJ[A-Za-z0-9_-]{8,}|\bsl\.[A-Za-z0-9_-]{20,}|\bdt0c01\.[A-Z0-9.]{20,}"
    r"|\bxox[a-z]-[A-Za-z0-9-]{8,}|\bxapp-[A-Za-z0-9-]{8,}"
    r"|\b(?:AKIA|ASIA|ABIA|ACCA|AGPA|AIDA|AROA|ANPA)[0-9A-Z]{12,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|\bya29\.[A-Za-z0-9_-]{8,}|\bGOCSPX-[A-Za-z0-9_-]{8,}"
    r"|\bdapi[0-9a-f]{16,}|\bSG\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"
    r"|\bhv[sbr]\.[A-Za-z0-9_-]{8,}|\bdp\.[a-z]{2}\.[A-Za-z0-9]{8,}"
    r"|(?<!\d)\d{8,10}:[A-Za-z0-9_-]{30,}|(?<=/bot)\d{6,12}:[A-Za-z0-9_-]{8,}"
    r"|\beyJ[A-Za-z0-9_-]{10,}(?:\.[A-Za-z0-9_-]*){0,2}"
    r"|(?<=hooks\.slack\.com/services/)[\w/]+|(?<=/api/webhooks/)[\w/-]+"
    r"|(?<=/IncomingWebhook/)[\w/-]+"
    r"|\b[0-9a-fA-F]{32,}\b",  # keys of many services; a digest is lost with them
    re.DOTALL,
)
"""What secrets of well-known services look like."""

_RUN = re.compile(r"(?<![A-Za-z0-9+_=-])[A-Za-z0-9+_=-]{20,}(?![A-Za-z0-9+_=-])")
_FORTY = re.compile(
    r"(?<![A-Za-z0-9+/=])[A-Za-z0-9+][A-Za-z0-9+/]{39}(?![A-Za-z0-9+/])"
)
_TURN = re.compile(r"[a-z]+|[A-Z]+|[0-9]+")
_LONGEST_TURN = 2.75
_LONGEST_TURN_OF_TWO = 3.5
"""Characters between turns from lower case to upper case to digits: 1.6 in random ones
of all three kinds, 2.5 without capitals; `TransformerEncoderLayer2Forward` has 3.4."""

_PART = re.compile(
    r"(?:[A-Z]?[a-z]+|[A-Z]+|(?:[A-Z][a-z]+){2,4}|[A-Z]{1,4}[a-z]+)\d{0,4}"
    r"|\d{1,4}(?:x\d{1,4})?[A-Za-z]{0,2}|[a-z]{1,3}\de-?\d{1,2}"
)
_OF_PARTS = re.compile(r"[-_]")
_LEAST_PARTS = 3
"""`Mixtral-8x22B-Instruct-v0` is a name of words and sizes."""

_OF_ADDRESSES = str.maketrans("-_", "+/")


def without_known_shapes(words: str, hidden: str) -> str:
    """Without keys of services, and keys of ciphers."""
    return _SHAPES.sub(hidden, words)


def without_random_runs(words: str, hidden: str) -> str:
    """Without what turns as often as random characters do, and text in base64."""

    def shown(run: re.Match[str]) -> str:
        said = run[0]
        random = _is_random(said) and not _is_of_words(said)
        return hidden if random or _is_encoded(said) else said

    return _FORTY.sub(shown, _RUN.sub(shown, words))


def _is_random(said: str) -> bool:
    turns = _TURN.findall(said)
    if not turns or not any(map(str.isdigit, turns)):
        return False
    turn = sum(map(len, turns)) / len(turns)
    kinds = any(map(str.isupper, turns)) + any(map(str.islower, turns)) + 1
    if kinds == 2:
        return said.isalnum() and turn <= _LONGEST_TURN_OF_TWO
    return kinds == 3 and turn <= _LONGEST_TURN


def _is_of_words(said: str) -> bool:
    parts = _OF_PARTS.split(said)
    return len(parts) >= _LEAST_PARTS and all(map(_PART.fullmatch, parts))


def _is_encoded(said: str) -> bool:
    """Whether it is base64 of something that can be read, which no name is."""
    padded = said.rstrip("=") + "=" * (-len(said.rstrip("=")) % 4)
    try:
        plain = a2b_base64(padded.translate(_OF_ADDRESSES), strict_mode=True)
    except (Error, ValueError):
        return False
    return plain.isascii() and plain.decode().isprintable()
