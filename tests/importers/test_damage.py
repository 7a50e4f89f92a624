"""Files as users have them: damaged, odd, or of another kind. Names are of rows in
the list of public reports that each test answers.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers import import_run
from fsdpdoctor.importers.reader.decoders import default_decoder
from fsdpdoctor.importers.reader.read_trace import scan_file
from fsdpdoctor.importers.reader.trace_file import Health, TraceFile
from tests.importers.drawn_trace import DrawnTrace, annotation_texts, rank_metadata
from tests.importers.real_traces import real


def scan(path: Path, content: str | bytes) -> TraceFile:
    """What is read of a file of this content."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return scan_file(path, default_decoder())


def document(events: list[str], separator: str = ",\n") -> str:
    """A trace of these events, with keys on both sides of them."""
    return (
        '{"schemaVersion": 1, "traceEvents": [\n'
        + separator.join(events)
        + '\n], "baseTimeNanoseconds": 7}'
    )


def names(trace: TraceFile) -> list[str]:
    """The names of the rows, in order."""
    return [trace.names[name] for name in trace.events.name.tolist()]


@pytest.mark.parametrize("separator", [",\n", ", ", ",", "\n  ,\n  "])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"C:\ quoted", "C:\\ quoted"),
        (r"C:\Users\me", "C:\\Users\\me"),
        ('say "hi" now', 'say "hi" now'),
        ("C:\\dir\\", "C:\\dir\\"),
    ],
)
def test_r08_invalid_escapes(
    tmp_path: Path, separator: str, written: str, read: str
) -> None:
    """Backslashes and quotes that nobody escaped cost no event, in any layout."""
    content = document(annotation_texts(["before", written, "after"]), separator)

    trace = scan(tmp_path / "t.json", content)

    assert names(trace) == ["before", read, "after"]
    assert (trace.health.repaired, trace.health.dropped) == (1, 0)
    assert trace.health.damaged_at == content.index(annotation_texts(["", written])[1])
    assert trace.metadata == {"schemaVersion": 1, "baseTimeNanoseconds": 7}


def test_r09_control_characters(tmp_path: Path) -> None:
    """A raw control character in a name is kept as that character."""
    trace = scan(
        tmp_path / "t.json", document(annotation_texts(["a", "x\x01\ty", "b"]))
    )

    assert names(trace) == ["a", "x\x01\ty", "b"]
    assert (trace.health.repaired, trace.health.dropped) == (1, 0)


def test_r10_huge_integers_and_foreign_bytes(tmp_path: Path) -> None:
    """Integers past int64 are unknown ids, latin-1 bytes are shown by value, half a
    surrogate pair is the replacement character; neighbours are untouched.
    """
    events = annotation_texts(["a", "caf\xe9", r"half \ud83d pair", "b"])
    events[0] = events[0].replace(
        '"External id": 0', '"External id": 10159970886766084423'
    )
    content = document(events).encode("latin-1")

    trace = scan(tmp_path / "t.json", content)

    assert names(trace) == ["a", "caf\\xe9", "half \ufffd pair", "b"]
    assert trace.events.external.tolist() == [-1, 1, 2, 3]
    assert (trace.health.repaired, trace.health.dropped) == (2, 0)


@pytest.mark.parametrize(
    ("sign", "external", "kept"), [("", -1, ["a", "c"]), ("-", 0, ["a", "b", "c"])]
)
def test_r10_exponents_beyond_all_bounds(
    tmp_path: Path, sign: str, external: int, kept: list[str]
) -> None:
    """A number that not even a Decimal holds is an unknown id and no time, or zero."""
    events = annotation_texts(["a", "b", "c"])
    huge = f"5.5e{sign}6196220199047108207"
    events[0] = events[0].replace('"External id": 0', f'"External id": {huge}')
    events[1] = events[1].replace('"ts": ', f'"ts": {huge}, "was": ', 1)

    trace = scan(tmp_path / "t.json", document(events).encode())

    assert names(trace) == kept
    assert trace.events.external.tolist()[:: len(kept) - 1] == [external, 2]
    assert (trace.health.repaired, trace.health.dropped) == (0, 3 - len(kept))


def test_r10_the_real_one() -> None:
    """T7's trace whose communicator id is past int64 is read whole."""
    path = real("odd_files/large_integer_trace")
    run = import_run([path])
    (data,) = run.load()

    assert run.ranks == (70,)
    assert data.header.health["events"] == 2
    assert len(data.outside) == 1


def test_r11_truncated_tail(tmp_path: Path) -> None:
    """What is whole is kept, and the byte where the file breaks off is named."""
    content = document(annotation_texts(["a", "b", "c"]))
    cut = content.index('"c"')

    trace = scan(tmp_path / "t.json", content[:cut])

    assert names(trace) == ["a", "b"]
    assert trace.health.truncated_at == content.index(
        annotation_texts(["", "", "c"])[2]
    )


def test_r11_truncated_archive(tmp_path: Path) -> None:
    """A gzip file that was cut gives its events up to the cut."""
    content = document(annotation_texts([f"event {i}" for i in range(20_000)])).encode()
    packed = gzip.compress(content)

    trace = scan(tmp_path / "t.json.gz", packed[: len(packed) // 2])

    kept = len(trace.events)
    assert names(trace) == [f"event {i}" for i in range(kept)]
    assert 5_000 < kept < 15_000
    assert trace.health.truncated_at is not None


def test_r11_every_cut(tmp_path: Path) -> None:
    """Wherever a small file is cut, whole events before the cut are kept."""
    events = annotation_texts(["a", "b"])
    content = document(events)
    ends = [content.index(event) + len(event) for event in events]
    for length in range(len(content)):
        trace = scan(tmp_path / "t.json", content[:length])
        assert len(trace.events) == sum(end <= length for end in ends)


def test_r11_two_traces_in_one_file(tmp_path: Path) -> None:
    """Ranks that wrote one after the other into one file are told so."""
    one = document(annotation_texts(["a"]))
    path = tmp_path / "t.json"
    path.write_text(one + one)

    with pytest.raises(InputError, match=r"more than one trace.*near byte \d+"):
        scan_file(path, default_decoder())


def test_r11_duplicated_rank(tmp_path: Path) -> None:
    """Two files of one rank are named, not merged."""
    for name in ("a.json", "b.json"):
        DrawnTrace(metadata=rank_metadata(3, 8)).write(tmp_path / name)

    with pytest.raises(InputError, match=r"a\.json and .*b\.json are both of rank 3"):
        import_run([tmp_path])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}', "Chakra execution trace"),
        (b'{"pg_config": {}, "version": "2.9", "entries": []}', "fsdpdoctor hang"),
        (b"\x80\x04\x95\x10\x00}\x94\x8c\rdevice_traces\x94.", "memory snapshot"),
        (b"\x80\x02}X\x07\x00\x00\x00entriesq\x00].", "Flight Recorder dump"),
        (b"\x80\x04N.", "a pickle: expected the JSON"),
        (b"SQLite format 3\0" + bytes(84), "a SQLite database"),
        (
            b'{"ended": "done", "schema_version": 2, "world_size": 2}',
            "recorded run: give",
        ),
        (b"\xff\xff\xff\xff\x00\x00", "a recorded run: give the folder"),
        (b'{"schema_version": 1, "run": {"run_id": ""}, "verdict": {}}', "it is of"),
        (b'{"a": 1}', "JSON of another kind"),
        (b"", "an empty file"),
        (b"hello", "of a kind that fsdpdoctor does not know"),
    ],
)
def test_r12_wrong_kind_of_file(tmp_path: Path, content: bytes, sentence: str) -> None:
    """The error says what the file is, and what to do with it."""
    path = tmp_path / "file.json"
    path.write_bytes(content)

    with pytest.raises(InputError, match=sentence):
        import_run([path])


def test_r12_other_files_in_the_folder_are_left_out(tmp_path: Path) -> None:
    """A folder's traces are read, and what lies beside them is said to be left out."""
    DrawnTrace(metadata=rank_metadata(0, 1)).write(tmp_path / "rank0.json.gz")
    (tmp_path / "et.json").write_text('{"schema": "1.0.2-chakra.0.0.4", "nodes": []}')

    run = import_run([tmp_path])

    assert run.ranks == (0,)
    assert len(run.warnings) == 1
    assert "left out" in run.warnings[0]
    assert "Chakra" in run.warnings[0]


def test_r12_the_real_ones() -> None:
    """T17 and T18 are known for what they are."""
    with pytest.raises(InputError, match="CUDA memory snapshot"):
        import_run([real("memory_snapshot/output.pickle")])
    with pytest.raises(InputError, match="Flight Recorder dump"):
        import_run([real("flight_recorder/gpu_error_1st/_dump_3")])


def test_r13_metadata_only(tmp_path: Path) -> None:
    """A trace without events, or without the list of them, is a rank with no steps."""
    for content in ('{"traceEvents": []}', '{"traceEvents": [\n]}'):
        path = tmp_path / "rank0.json"
        path.write_text(content)
        (data,) = import_run([path]).load()

        assert data.steps == ()
        assert data.evidence == frozenset()
        assert "no whole step" in data.header.warnings[0]


def test_r14_stray_bracket(tmp_path: Path) -> None:
    """A bracket too many after the events does not hide the keys behind it."""
    content = document(annotation_texts(["a", "b"])).replace("\n],", "\n]],")

    trace = scan(tmp_path / "t.json", content)

    assert names(trace) == ["a", "b"]
    assert trace.metadata == {"schemaVersion": 1, "baseTimeNanoseconds": 7}


def test_not_a_number_and_wrong_types(tmp_path: Path) -> None:
    """`nan` in an argument costs nothing; an event without a usable time is dropped."""
    events = annotation_texts(
        ["nan arg", "text time", "no time", "list name", "negative"]
    )
    events[0] = events[0].replace('"External id": 0', '"External id": 0, "x": -nan')
    events[1] = events[1].replace('"ts": 1.5', '"ts": "1.25"')
    events[2] = events[2].replace('"ts": 2.5', '"ts": null')
    events[3] = events[3].replace('"list name"', '["list", 1.5]')
    events[4] = events[4].replace('"dur": 1', '"dur": -1')

    trace = scan(tmp_path / "t.json", document(events))

    assert names(trace) == ["nan arg", "text time", '["list", "1.5"]']
    assert trace.events.start_ns.tolist() == [500, 1250, 3500]
    assert trace.health == Health(
        events=5,
        repaired=1,
        dropped=2,
        negative_durations=1,
        damaged_at=trace.health.damaged_at,
    )


@pytest.mark.parametrize("indent", [None, 2, 4, "\t"])
def test_layouts_give_the_same_rows(tmp_path: Path, indent: int | str | None) -> None:
    """One line, or indented in whatever way: the rows are the same."""
    events = [
        json.loads(event) for event in annotation_texts([f"e{i}" for i in range(50)])
    ]
    nested = {"list": [{"ph": "X"}, {"ph": "X"}], "text": '}, {"ph": "X"'}
    events[7]["args"] |= nested
    text = json.dumps({"traceEvents": events, "last": [1]}, indent=indent)

    trace = scan(tmp_path / "t.json", text)

    assert names(trace) == [f"e{i}" for i in range(50)]
    assert trace.health == Health(events=50)
    assert trace.metadata == {"last": [1]}


def test_chunks_of_a_large_file_lose_nothing(tmp_path: Path) -> None:
    """Many blocks, cut wherever they happen to end, give every event once."""
    count = 90_000
    for separator in (",\n", ", "):
        content = document(annotation_texts([f"n{i}" for i in range(count)]), separator)
        trace = scan(tmp_path / "t.json", content)

        assert len(content) > 2 * (4 << 20)
        assert names(trace) == [f"n{i}" for i in range(count)]
        assert trace.health == Health(events=count)


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    """It unpacks to 1,000 times its size; a real trace to 30 times at most."""
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", 6) as file:
        file.write(b'{"traceEvents": [{"ph": "X", "name": "')
        for _ in range(80):
            file.write(b"A" * (1 << 20))

    with pytest.raises(InputError, match=r"more than 200 times its size \(6\d MiB so"):
        scan_file(path, default_decoder())


def test_a_damaged_event_of_megabytes_is_dropped(tmp_path: Path) -> None:
    """It is not gone through character by character; its neighbours are read."""
    event = '{"ph": "X", "cat": "kernel", "name": "%s", "ts": 1, "dur": 1}'
    huge = event % ("a" * (2 << 20) + "\\x")
    text = document([event % "first", huge, event % "last"])

    trace = scan(tmp_path / "trace.json", text)

    assert names(trace) == ["first", "last"]
    assert trace.health == Health(
        events=3, dropped=1, damaged_at=trace.health.damaged_at
    )
