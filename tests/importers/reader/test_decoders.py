"""The C scanner and msgspec give the same rows, whatever they are given."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.reader import chunks
from fsdpdoctor.importers.reader.decode_c import (
    COLUMNS,
    OP_CATEGORIES,
    OP_COLUMNS,
    SCANNED,
    CDecoder,
)
from fsdpdoctor.importers.reader.decode_json import decode_chunk, kept_texts
from fsdpdoctor.importers.reader.decoders import default_decoder
from fsdpdoctor.importers.reader.read_trace import Decode, scan_file
from fsdpdoctor.importers.reader.trace_file import (
    CATEGORIES,
    NO_DEVICE,
    Cat,
    Events,
    Health,
    TraceFile,
    names_that,
    rows_named,
)
from tests.importers.reader.same_rows import (
    Outcome,
    chunks_of,
    decoder,
    outcomes,
    read_alike,
    same,
)
from tests.importers.real_traces import found, within

CORPUS = Path(__file__).parent / "corpus"

_scan = pytest.importorskip(
    "fsdpdoctor._scan", reason="it is not built: pip install . where a compiler is"
)


def scanner() -> Any:
    """A scanner that leaves no operator out."""
    return _scan.Scanner(SCANNED, *OP_CATEGORIES, ())


def by_msgspec(chunk: bytes) -> Outcome:
    """What msgspec makes of a chunk; None where it finds damage."""
    return outcomes([chunk], decode_chunk)[0]


def by_c(chunk: bytes) -> Outcome:
    """What the C scanner makes of it, with what it leaves to msgspec."""
    return outcomes([chunk], decoder())[0]


def declines(chunk: bytes) -> bool:
    """Whether the C scanner leaves a chunk to msgspec."""
    return scanner().scan(chunk) is None


NUMBERS = st.sampled_from(
    [
        *("0", "-0", "1", "12.5", "12.5004", "12.5005", "12.4995", "-12.5005", "1e3"),
        *("1E-3", "1.5e+2", "4954104754192.022", "1694128201429795.123", "1e999"),
        *("9223372036854775807", "10159970886766084423", "1" * 40, "0.0001", "0.0005"),
        *("4294967295", "1.0", "3.25e0", "8796093022208.001", "null", '"7"', '"0x1F"'),
        *('"-12"', '"Spans"', '"stream 7"', '"\\u0031"', "true", "[1]", "{}", "01"),
        *("-", "1.", ".5", "+1", "NaN", "1e", '"0x"', '"12345678901234567890"', '""'),
    ]
)
TEXTS = st.one_of(
    st.sampled_from(
        [
            *('"aten::add"', '"c10d::_allgather_base_"', '"nccl:all_reduce"', '""'),
            *('"FSDP::all_gather (layers.0)"', '"a\\"b"', '"\\u00e9\\/"', '"\\q"'),
            *('"\\ud83d\\ude00"', '"\\ud83d"', '"caf\u00e9"', '"\x01"', "null", "5"),
        ]
    ),
    st.text(max_size=12).map(json.dumps),
    st.text(max_size=40).map(lambda text: json.dumps(text, ensure_ascii=False)),
)
ARGS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(
                ["External id", "correlation", "stream", "device", "bytes", "Seq"]
            ),
            NUMBERS,
        ),
        st.tuples(
            st.sampled_from(["Collective name", "dtype", "Process Group Name"]),
            st.one_of(TEXTS, NUMBERS),
        ),
        st.tuples(
            st.sampled_from(
                ["Input Dims", "Input type", "x", "In msg nelems", "Group size"]
            ),
            st.sampled_from(["[]", "[[1, 2], []]", '{"a": [{}]}', "3", "[1,]", "tru"]),
        ),
    ),
    max_size=5,
).map(lambda pairs: "{" + ", ".join(f'"{k}": {v}' for k, v in pairs) + "}")
MEMBERS = st.one_of(
    st.tuples(st.just("ts"), NUMBERS),
    st.tuples(st.just("dur"), NUMBERS),
    st.tuples(st.just("pid"), NUMBERS),
    st.tuples(st.just("tid"), NUMBERS),
    st.tuples(st.just("name"), TEXTS),
    st.tuples(st.just("args"), st.one_of(ARGS, ARGS, ARGS, NUMBERS)),
    st.tuples(
        st.just("cat"), st.sampled_from([f'"{cat}"' for cat in (*CATEGORIES, "x", "y")])
    ),
    st.tuples(st.just("bp"), TEXTS),
)
PHASES = st.sampled_from(['"X"', '"X"', '"X"', '"X"', '"M"', '"f"', '"?"', '"XX"', "1"])


@st.composite
def events(draw: st.DrawFn) -> str:
    """An event with members in any order, most of them as they should be."""
    members = [("ph", draw(PHASES)), *draw(st.lists(MEMBERS, max_size=8))]
    if draw(st.integers(0, 3)):
        members += [("cat", '"kernel"'), ("ts", "1.5")]
        members = list({key: (key, value) for key, value in members}.values())
    if draw(st.booleans()):
        members = draw(st.permutations(members))
    space = draw(st.sampled_from(["", " ", "\n    ", "\t"]))
    joined = f",{space}".join(f'"{key}":{space}{value}' for key, value in members)
    return f"{{{space}{joined}{space}}}"


CHUNKS = st.lists(events(), min_size=1, max_size=4).map(
    lambda texts: ", ".join(texts).encode("utf-8", "surrogatepass")
)


@settings(max_examples=200)
@given(CHUNKS)
@example(b'{"ph": "X", "cat": "kernel", "ts": 4954104754192.022, "dur": 0.0005}')
@example(b'{"ph": "X", "cat": "kernel", "ts": 1, "name": "\\u00e9"}')
@example(b'{"ts": 1, "cat": "kernel", "ph": "X", "ts": 2}')
@example(b'{"ph": "X", "cat": "cpu_op", "ts": 1, "tid": "Spans", "name": "\xff"}')
@example(b'{"ph": "M", "name": "\xff", "args": 3}')
@example(b'{"ph": "X", "cat": "python_function", "name": "\xff", "ts": 1}')
@example(b'{"ph": "X", "cat": "kernel", "ts": 1, "args": {"Collective name": [1]}}')
@example(b'{"ph": "X", "cat": "x", "ts": 1e999}')
@example(b'{"ph": "X", "cat": "kernel", "ts": 1, "args": {"dtype": {}}}')
@example(b'{"ph": "X", "cat": "x", "ts": 1, "args": {"Seq": true}}')
def test_any_events(chunk: bytes) -> None:
    """Events with every oddity alone and together."""
    assert by_c(chunk) == by_msgspec(chunk)
    assert read_alike([chunk])


@settings(max_examples=200)
@given(CHUNKS, st.data())
def test_any_damage(chunk: bytes, data: st.DataObject) -> None:
    """Bytes changed, lost or doubled anywhere."""
    at = data.draw(st.integers(0, len(chunk)))
    removed = data.draw(st.integers(0, 3))
    added = data.draw(st.one_of(st.binary(max_size=3), st.sampled_from([b'"', b"}"])))
    damaged = chunk[:at] + added + chunk[at + removed :]

    assert by_c(damaged) == by_msgspec(damaged)


PIECES = st.sampled_from(
    [
        *('"ph": "X"', '"ph": "s"', '"ph": "?"', '"cat": "cpu_op"', '"cat": "kernel"'),
        *(
            '"cat": "x"',
            '"cat": "a\\nb"',
            '"cat": "caf\u00e9"',
            '"pid": 1',
            '"pid": -2',
        ),
        *('"pid": "Spans"', '"pid": 1.5', '"tid": 7', '"tid": null', '"tid": 1e2'),
        *('"name": "a"', '"name": "\u00e9"', '"ts": 1', '"ts": 2.5', '"bp": "e"'),
    ]
)
ALIKE = st.lists(
    st.lists(PIECES, min_size=1, max_size=7), min_size=1, max_size=3
).flatmap(
    lambda kinds: st.lists(
        st.lists(st.sampled_from(kinds), min_size=1, max_size=5), min_size=2, max_size=4
    )
)
"""Chunks of events of a few kinds, so that whole stretches of them come again."""


@settings(max_examples=300)
@given(ALIKE)
@example([[['"ph": "s"', '"cat": "cpu_op"', '"name": "a"', '"pid": 1', '"ts": 1']] * 3])
@example([[['"name": "a"', '"pid": 1', '"ts": 1', '"pid": 1', '"ts": 1']] * 2] * 2)
def test_stretches_that_come_again(kinds: list[list[list[str]]]) -> None:
    """What the scanner has read before it takes as read, where it means the same."""
    texts = [
        ", ".join(f"{{{', '.join(pieces)}}}" for pieces in events).encode()
        for events in kinds
    ]

    assert read_alike(texts)


def test_more_kinds_of_stretches_than_are_kept() -> None:
    """The oldest go; rows are the same."""
    event = '{"ph": "X", "cat": "kernel", "name": "a", "pid": %d, "tid": %d, "ts": 1}'
    texts = [
        ", ".join(event % (i % 23, i // 3) for i in range(first, first + 70)).encode()
        for first in (0, 35, 70)
    ]

    assert read_alike(texts)
    assert not declines(texts[0])


def test_what_is_plain_is_not_declined() -> None:
    """The speed is C's: ordinary events, their escapes and text ids included, are not
    handed on.
    """
    chunk = (
        b'{"ph": "X", "cat": "kernel", "name": "a\\"b", "ts": 1.5, "dur": 2},\n'
        b'{"ph": "X", "cat": "Trace", "pid": "Spans", "tid": "P", "ts": 1e3, "dur": 1},'
        b'{"ph": "f", "name": "ac2g", "id": 3}'
    )

    assert not declines(chunk)


def test_what_fuzzing_found() -> None:
    """Inputs of the fuzzers that reached code of their own, and those that once were
    read differently: chunks, one after the other.
    """
    inputs = [path.read_bytes() for path in sorted(CORPUS.glob("chunks/*"))]

    assert len(inputs) > 100
    assert [data for data in map(chunks_of, inputs) if not read_alike(data)] == []


def test_what_fuzzing_found_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with whole files: the first byte says how small their blocks are."""
    inputs = [path.read_bytes() for path in sorted(CORPUS.glob("files/*"))]
    path = tmp_path / "trace.json"
    different = []
    for data in inputs:
        monkeypatch.setattr(chunks, "BLOCK", 16 << (data[0] % 9))
        path.write_bytes(data[1:])
        if not same(scan_file(path), scan_file(path, decoder(every_op=False))):
            different.append(data)

    assert len(inputs) > 50
    assert different == []


def test_names_of_damaged_chunks_get_no_id() -> None:
    """A chunk that C reads and whose odd values prove damaged leaves no trace: names
    after it have the ids that msgspec gives them.
    """
    good = b'{"ph": "X", "cat": "kernel", "ts": 1, "name": "%s"}'
    damaged = b'{"ph": "X", "cat": "kernel", "ts": 1e999, "name": "lost"}'
    chunks = [good % b"a", damaged, good % b"b", good % b"lost"]

    assert read_alike(chunks)


def read(path: Path, decode: Decode) -> TraceFile | str:
    """A file as a decoder has it read, or what it is refused with."""
    try:
        return scan_file(path, decode)
    except InputError as error:
        return str(error)


@pytest.mark.parametrize("path", found("*.json*"), ids=within)
def test_real_traces(path: Path) -> None:
    """Every trace that lies beside the project, known here or not."""
    c, msgspec = read(path, decoder(every_op=False)), read(path, decode_chunk)

    if isinstance(c, TraceFile) and isinstance(msgspec, TraceFile):
        assert same(c, msgspec)
    else:
        assert c == msgspec


def test_the_lock_is_released() -> None:
    """Other threads run while a chunk is scanned.

    Nobody is asked to give the lock up, so a thread that only counts gets on in
    a scan if that lets go of it, and not otherwise. On a busy machine it may have to
    wait for a processor: there are many scans.
    """
    event = b'{"ph": "X", "cat": "python_function", "name": "n", "ts": 1, "x": "%s"}'
    chunk = b",".join([event % (b"y" * 1000)] * 10_000)
    scans = scanner()
    counted = 0
    done = threading.Event()

    def count() -> None:
        nonlocal counted
        while not done.is_set():
            counted += 1
            time.sleep(0)

    interval_s = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        gone_on = False
        for _ in range(1000):
            before = counted
            scans.scan(chunk)
            gone_on = counted > before
            if gone_on:
                break
        done.set()
        thread.join()
    finally:
        sys.setswitchinterval(interval_s)

    assert gone_on


def test_a_scanner_is_for_one_thread() -> None:
    """Wrong use raises; it never crashes."""
    scans = scanner()
    with pytest.raises(TypeError, match="a chunk is bytes"):
        scans.scan("text")
    with pytest.raises(ValueError, match="initialised before"):
        scans.__init__({"kernel": 1}, *OP_CATEGORIES, ())
    with pytest.raises(ValueError, match="too many"):
        _scan.Scanner({}, *OP_CATEGORIES, ("x",) * 33)
    assert scans.scan(b"") is None
    scanned = scans.scan(b'{"ph": "X"}')
    assert scanned is not None
    events, names, (rows, columns), (op_rows, op_columns), pids, unread = scanned
    assert (events, names, rows, op_rows, pids, unread) == (1, [], 0, 0, [], {})
    assert len(columns) == _scan.COLUMNS == len(COLUMNS)
    assert len(op_columns) == _scan.OP_COLUMNS == len(OP_COLUMNS)


def test_a_built_scanner_is_the_default() -> None:
    """Msgspec reads where there is none."""
    assert isinstance(default_decoder(), CDecoder)


def test_rows_are_found_by_category_and_name() -> None:
    """By a mask over the names; each row knows when it ended."""
    trace = TraceFile(
        names=("aten::add", "aten::mul", "gemm"),
        events=Events.build(
            4,
            cat=[Cat.CPU_OP, Cat.KERNEL, Cat.CPU_OP, Cat.CPU_OP],
            name=[0, 2, 1, 0],
            start_ns=[10, 20, 30, 40],
            duration_ns=[5, 6, 7, 8],
        ),
    )
    adds = names_that(trace, lambda name: name.endswith("add"))

    assert adds.tolist() == [True, False, False]
    rows = rows_named(trace, (Cat.CPU_OP,), adds)
    assert rows.tolist() == [0, 3]
    assert trace.events.ends(rows).tolist() == [15, 48]
    assert len(rows_named(trace, (Cat.KERNEL,), adds)) == 0


def test_health_names_a_place_only_where_there_is_one() -> None:
    """Counts always; where the file ends, and where it is damaged, if it is."""
    counts = {"events": 9, "repaired": 1, "dropped": 2, "negative_durations": 2}
    whole = Health(events=9, repaired=1, dropped=2, negative_durations=2)
    cut = Health(events=9, truncated_at=70, damaged_at=30)

    assert whole.counts() == counts
    assert cut.counts() == {
        "events": 9,
        "repaired": 0,
        "dropped": 0,
        "negative_durations": 0,
        "truncated_at_byte": 70,
        "damaged_at_byte": 30,
    }


def test_unread_events_are_a_devices_unless_known_otherwise() -> None:
    """A category that nobody knows may be a new kernel's; known ones are the host's."""
    host = sorted(NO_DEVICE)[0]
    assert TraceFile(unread={host: 7, "new_kernel": 3}).unread_device == {
        "new_kernel": 3
    }
    assert TraceFile().unread_device == {}


def test_the_texts_of_the_rows_are_those_that_were_written() -> None:
    """One for each row of the chunk, in its order; what is no row has none."""
    kept = b'{"ph":"X","cat":"kernel","name":"gemm", "pid":0,"tid":7,"ts":1,"dur":2}'
    other = b'{"ph":"X","cat":"python_function","name":"f","pid":1,"tid":1,"ts":1}'
    flow = b'{"ph":"s","id":3,"pid":1,"tid":1,"ts":1,"cat":"ac2g","name":"ac2g"}'

    assert kept_texts(b",".join([other, kept, flow])) == [kept]
