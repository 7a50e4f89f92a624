"""Pickles that hold plain data alone: no code runs, and memory stays in proportion.

Python's unpickler does what its bytes ask for. A file of ten bytes may name a memo slot
that takes 30 GB, one of a megabyte may be a million lists, and any may name a function.
So the bytes are looked at before: only what writes numbers, words, lists, tuples and
dicts gets through, of every protocol.
"""

from __future__ import annotations

import io
import pickle
import re

from fsdpdoctor.quantities import MIB

MOST_TIMES = 8
"""Of a file's size that its objects may take: snapshots and Flight Recorder dumps take
2 to 4 times."""

_SLACK_BYTES = 64 * MIB

_HEAVY = {
    b"]": 72,
    b"}": 80,
    b"l": 72,
    b"d": 80,
    b"t": 56,
    b"\x85": 64,
    b"\x86": 64,
    b"\x87": 64,
    b"M": 36,
    b"\x8c": 64,
}
"""What an opcode of a byte or three can take in memory, at most."""

_SHORT_TEXTS = b"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(256))
_SHORT_INTS = b"|".join(b"\\x%02x.{%d}" % (n, n) for n in range(17))
_PLAIN = re.compile(
    b"(?s:"
    + b"|".join(
        (
            rb"\x80[\x00-\x05]",  # protocol
            rb"\x95.{8}",  # frame
            rb"[\x94(uetsal\]}\)dN\x88\x89\x85\x86\x870]",
            rb"h.|q.|j...\x00|r...\x00",  # memo slots below 16 million
            rb"[gp][0-9]{1,7}\n",
            rb"K.|M..|J.{4}|G.{8}",
            rb"\x8a(?:" + _SHORT_INTS + rb")",
            rb"\x8c(?:" + _SHORT_TEXTS + rb")",
            rb"[UC](?:" + _SHORT_TEXTS + rb")",
            rb"[IF][^\n]{1,64}\n|L[^\n]{1,64}\n",
            rb"[VS][^\n]*\n",
        )
    )
    + b")*+"
)
"""Opcodes of plain data whose length is in the pattern; all that follow each other."""

_COUNTED = frozenset(b"XTB")  # words and bytes, after their length in four bytes
_GLOBALS = frozenset(b"c\x93iR")
"""Let through: `find_class` refuses them, and can say what they name."""


class NotPlainError(ValueError):
    """A pickle that is cut, or holds more than plain data."""


class _NoGlobals(pickle.Unpickler):
    """Refuses every global, and with them all code."""

    def find_class(self, module: str, name: str) -> object:
        raise NotPlainError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: object) -> object:
        raise NotPlainError("it asks for an object from outside the file")


def load_plain(content: bytes) -> object:
    """The value that a pickle holds. Raises NotPlainError."""
    _look_through(content)
    try:
        return _NoGlobals(io.BytesIO(content)).load()
    except NotPlainError:
        raise
    # A cut pickle, or one made to harm, can make the machine raise nearly any of these.
    except (
        pickle.UnpicklingError,
        ValueError,
        EOFError,
        KeyError,
        IndexError,
        TypeError,
        AttributeError,
        MemoryError,
        OverflowError,
        RecursionError,
    ) as error:
        raise NotPlainError(str(error) or type(error).__name__) from None


def _look_through(content: bytes) -> None:
    """Raise NotPlainError where an opcode is not of plain data, or there are too many
    of those that take much memory.
    """
    takes = sum(content.count(opcode) * size for opcode, size in _HEAVY.items())
    if takes > MOST_TIMES * len(content) + _SLACK_BYTES:
        raise NotPlainError(
            f"its objects could take {takes:,} bytes of memory, of a file of "
            f"{len(content):,}"
        )
    at = 0
    while True:
        match = _PLAIN.match(content, at)
        assert match is not None  # it may match nothing, and always matches
        at = match.end()
        opcode = content[at : at + 1]
        if opcode == b".":
            return
        if not opcode:
            raise NotPlainError("it is cut off: its end is missing")
        if opcode[0] in _GLOBALS:
            return
        if opcode[0] not in _COUNTED:
            raise NotPlainError(
                f"byte {at:,} is cut off, or no plain data ({opcode!r} in a pickle)"
            )
        at += 5 + int.from_bytes(content[at + 1 : at + 5], "little")
