"""Changes a fuzzer makes to the text of a trace: bytes, numbers, pieces, splices."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

PIECES: tuple[bytes, ...] = (
    *(b'"ph"', b'"X"', b'"cat"', b'"name"', b'"ts"', b'"dur"', b'"pid"', b'"tid"'),
    *(b'"args"', b'"External id"', b'"correlation"', b'"stream"', b'"device"'),
    *(b'"bytes"', b'"Collective name"', b'"Input Dims"', b'"Seq"', b'"kernel"'),
    *(b'"user_annotation"', b'"cpu_op"', b'"cuda_runtime"', b'"Trace"', b'"nccl:a"'),
    *(b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"null", b"true", b"false"),
    *(b"0", b"-0", b"01", b"1e3", b"1E-3", b"1.", b".5", b"-", b"+1", b"NaN", b"1e999"),
    *(b"12.5005", b"-12.5005", b"9223372036854775807", b"10159970886766084423"),
    *(b"4294967295", b"1694128201429795.123", b"8796093022208.001", b"1" * 19),
    *(b"4611686018427387.903", b"4611686018427388", b"-4611686018427388", b"1.0"),
    *(b'"0x1f"', b'"-12"', b'"123456789012345678"', b'"\\u0031"', b"\\ud83d\\ude00"),
    *(b"\\ud83d", b"\\u00e9", b"\xc3\xa9", b"\xe2\x82\xac", b"\xf0\x9f\x98\x80"),
    *(b"\xff", b"\xff\n", b"\xed\xa0\x80", b"\xc0\x80", b"\x00", b"\x1f", b"\n", b" "),
    *(b"[" * 70, b'{"a":' * 40, b"}, {", b"},\n{", b"\n  },\n  {", b"]}", b"\x7f"),
    *(b"long name of a kernel, past the sixteen bytes of a vector", b"\\q", b"\\"),
)
"""What traces are made of, and what has broken readers of them."""

EVENT = (
    b'{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.5, '
    b'"dur": 2, "args": {"External id": 3, "device": 0, "stream": 7, "correlation": 9}}'
)
SEEDS: tuple[bytes, ...] = (
    EVENT,
    b'{"ph": "f", "name": "ac2g", "id": 3}, ' + EVENT,
    b'{"ph":"X","cat":"user_annotation","name":"FSDP::all_gather (a)","ts":1,"dur":0}',
    (
        b'{"ph": "X", "cat": "cpu_op", "name": "c10d::_allgather_base_", "ts": 1e3, '
        b'"args": {"Collective name": "allgather", "In msg nelems": 4, '
        b'"Input Dims": [[1], []]}}'
    ),
    EVENT + b"\xff\n" + EVENT.replace(b"gemm", b"a\\u00e9\\n") + b"\xff\n" + EVENT,
)
"""Where the fuzzer begins."""

_NUMBER = re.compile(rb"-?\d[\d.eE+]*")
MAX_BYTES = 2048
"""Longer inputs run slower and are no different."""


def mutate(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of the corpus with a few changes."""
    data = rng.choice(corpus)
    for _ in range(1 << rng.randrange(4)):
        data = rng.choice(_CHANGES)(rng, data, corpus)
    return data[:MAX_BYTES]


def _at(rng: random.Random, data: bytes) -> int:
    return rng.randrange(len(data) + 1)


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _at(rng, data)
    changed = (data[at] ^ (1 << rng.randrange(8))) if at < len(data) else 0
    return data[:at] + bytes([changed]) + data[at + 1 :]


def _put(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _at(rng, data)
    over = rng.choice((0, 0, 1, 4))
    return data[:at] + rng.choice(PIECES) + data[at + over :]


def _cut(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    at = _at(rng, data)
    return data[:at] + data[at + rng.choice((1, 1, 2, 5, 20)) :]


def _repeat(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = sorted((_at(rng, data), _at(rng, data)))
    return data[:last] + data[first:last] * rng.choice((1, 1, 2)) + data[last:]


def _number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    match = rng.choice(found)
    new = rng.choice(
        (
            str(rng.getrandbits(rng.choice((4, 31, 32, 62, 63, 64)))).encode(),
            f"{rng.getrandbits(40)}.{rng.getrandbits(rng.randrange(27))}".encode(),
            f"{rng.randrange(99)}.5e{rng.randrange(-9, 20)}".encode(),
            rng.choice(PIECES),
        )
    )
    return data[: match.start()] + new + data[match.end() :]


def _splice(rng: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = rng.choice(corpus)
    joint = rng.choice((b"", b", "))
    return data[: _at(rng, data)] + joint + other[_at(rng, other) :]


_CHANGES = (_flip, _put, _put, _cut, _repeat, _number, _number, _splice)
