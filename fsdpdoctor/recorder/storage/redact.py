"""Keeps secrets out of run files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

HIDDEN = "<redacted>"

_KEPT = re.compile(
    r"CUDA_DEVICE_MAX_CONNECTIONS|CUDA_LAUNCH_BLOCKING|NCCL_\w+|TORCH_NCCL_\w+"
    r"|PYTORCH_CUDA_ALLOC_CONF|PYTORCH_ALLOC_CONF|OMP_NUM_THREADS"
    r"|TORCH_DISTRIBUTED_DEBUG"
)
"""The environment variables that explain a run; no other is written."""

_SECRET_NAME = re.compile(
    r"(?:^|[-_.])(?:api[-_]?key|key|token|secret|passw(?:or)?d|pwd|credentials?|auth)"
    r"(?:$|[-_.])|apikey|password|secret|credential",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"hf_[A-Za-z0-9]{8,}"
    r"|sk-[A-Za-z0-9_-]{8,}"
    r"|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}"
    r"|xox[abprs]-[A-Za-z0-9-]{8,}"
    r"|AKIA[0-9A-Z]{12,}"
    r"|glpat-[A-Za-z0-9_-]{12,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    r"|\b[0-9a-f]{40}\b"  # a Weights & Biases key; a git hash is lost with it
)
_URL_LOGIN = re.compile(r"(\w+://)[^/\s:@]+(?::[^/\s@]*)?@")


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that explain a run, without secrets."""
    return {
        name: HIDDEN if _SECRET_NAME.search(name) else _value(value)
        for name, value in sorted(variables.items())
        if _KEPT.fullmatch(name)
    }


def command(argv: Sequence[str]) -> tuple[str, ...]:
    """A command line without secrets."""
    shown: list[str] = []
    hide_next = False
    for argument in argv:
        if hide_next and not argument.startswith("--"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        name, separator, _ = argument.partition("=")
        secret = _SECRET_NAME.search(name.lstrip("-")) is not None
        option = argument.startswith("-")
        hide_next = option and secret and not separator
        if secret and separator:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(_value(argument))
    return tuple(shown)


def text(words: str) -> str:
    """Words of a message, or a line of code, without secrets."""
    return _value(words)


def _value(value: str) -> str:
    return _SECRET_VALUE.sub(HIDDEN, _URL_LOGIN.sub(rf"\1{HIDDEN}@", value))
