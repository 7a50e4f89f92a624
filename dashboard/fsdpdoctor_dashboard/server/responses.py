"""An answer's bytes, packed where that is worth it, and the headers that say so."""

from __future__ import annotations

from typing import NamedTuple

from isal import igzip

WORTH_PACKING = 2_000
"""Bytes from which an answer is compressed: a tunnel is slower than a millisecond."""


class Answer(NamedTuple):
    """A body and what its headers say of it."""

    body: bytes
    headers: dict[str, str]


def packed_answer(body: bytes, encodings: str) -> Answer:
    """The body as it is sent, for what the browser said it accepts."""
    headers = {"Vary": "Accept-Encoding, Cookie"}
    if len(body) > WORTH_PACKING and "gzip" in encodings:
        body = igzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return Answer(body, headers)
