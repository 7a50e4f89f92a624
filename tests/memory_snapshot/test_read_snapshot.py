"""Files of `_dump_snapshot`: every layout and protocol, and files made to harm."""

from __future__ import annotations

import gzip
import os
import pickle
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.errors import InputError
from fsdpdoctor.memory_snapshot import read_snapshot as reading
from fsdpdoctor.memory_snapshot.read_snapshot import read_snapshot
from fsdpdoctor.memory_snapshot.snapshot import (
    NOT_RECORDED,
    Action,
    Annotation,
    Block,
    BlockState,
    Frame,
    Segment,
)
from fsdpdoctor.quantities import MIB
from tests.memory_snapshot.drawn_snapshot import (
    FORWARD,
    MODEL,
    SEGMENT,
    Drawn,
    Layout,
)


def small() -> Drawn:
    """One allocation that stays, one that goes."""
    drawn = Drawn()
    drawn.begin("FSDP::pre_forward (a)")
    drawn.alloc("stays", 1000, FORWARD[:1], metadata="step 1")
    drawn.alloc("goes", 600, FORWARD[:1])
    drawn.free("goes", None)
    return drawn


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_gives_the_same(tmp_path: Path, protocol: int) -> None:
    """All of a small snapshot, value by value."""
    found = read_snapshot(small().write(tmp_path / "rank0.pickle", protocol=protocol))

    address = 0x7F00_0000_0000
    assert found.stacks == ((Frame(MODEL, 20, "forward"),),)
    assert found.texts == ("", "step 1")
    assert found.annotations == (
        Annotation(1_700_000_000_000_010, "FSDP::pre_forward (a)", True),
    )
    assert found.settings == "expandable_segments:False"
    assert found.segments == (
        Segment(
            device=0,
            address=address,
            total_bytes=SEGMENT,
            stream=0,
            is_large=True,
            is_expandable=False,
            pool=(0, 0),
            blocks=(
                Block(
                    address=address,
                    size_bytes=1024,
                    requested_bytes=1000,
                    state=BlockState.ALLOCATED,
                    stack=0,
                ),
                Block(
                    address=address + 1024,
                    size_bytes=SEGMENT - 1024,
                    requested_bytes=0,
                    state=BlockState.INACTIVE,
                    stack=NOT_RECORDED,
                ),
            ),
        ),
    )
    (history,) = found.histories
    assert history.action.tolist() == [
        Action.SEGMENT_ALLOC,
        Action.ALLOC,
        Action.ALLOC,
        Action.FREE_REQUESTED,
        Action.FREE_COMPLETED,
    ]
    assert history.address.tolist() == [address, address, *[address + 1024] * 3]
    assert history.size_bytes.tolist() == [SEGMENT, 1000, 600, 600, 600]
    assert history.stack.tolist() == [-1, 0, 0, -1, -1]
    assert history.metadata.tolist() == [0, 1, 0, 0, 0]
    assert history.time_us.tolist() == [1_700_000_000_000_000 + t for t in TIMES]


TIMES = (20, 30, 40, 50, 60)


@pytest.mark.parametrize("layout", list(Layout))
def test_every_layout_has_the_same_blocks(tmp_path: Path, layout: Layout) -> None:
    """What is held, at which address and under which stack, in each torch's layout."""
    found = read_snapshot(small().write(tmp_path / "a.pickle", layout))

    (segment,) = found.segments
    held = segment.blocks[0]
    assert (held.address, held.size_bytes, held.requested_bytes) == (
        0x7F00_0000_0000,
        1024,
        1000,
    )
    assert found.stacks[held.stack] == (Frame(MODEL, 20, "forward"),)
    has_history = layout is not Layout.TORCH_1_12
    assert [len(one) for one in found.histories] == ([5] if has_history else [])


def test_a_packed_one_is_read(tmp_path: Path) -> None:
    """As it is sent to others."""
    path = tmp_path / "rank0.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(small().content())))

    assert len(read_snapshot(path).histories[0]) == 5


class Harm:
    """Runs a command when it is unpickled by the usual means."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo harm > harmed",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_snapshot_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    """It may name no global, and it is said which it named."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "rank0.pickle"
    content = {"segments": [], "device_traces": [[Harm()]]}
    path.write_bytes(pickle.dumps(content, protocol=protocol))

    with pytest.raises(InputError, match=r"it asks for posix\.system; expected what"):
        read_snapshot(path)
    assert not (tmp_path / "harmed").exists()


def test_every_cut_ends_in_one_line(tmp_path: Path) -> None:
    """Cut anywhere, it is said to be cut or damaged, and what to do."""
    whole = pickle.dumps(small().content())
    path = tmp_path / "rank0.pickle"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(InputError) as raised:
            read_snapshot(path)
        message = str(raised.value)
        assert "\n" not in message
        assert "expected what torch.cuda.memory._dump_snapshot writes" in message


def test_damaged_bytes_end_in_one_line_or_in_a_snapshot(tmp_path: Path) -> None:
    """A byte changed at random raises nothing but InputError."""
    whole = pickle.dumps(small().content())
    path = tmp_path / "rank0.pickle"
    rng = random.Random(0)
    said = []
    for _ in range(400):
        damaged = bytearray(whole)
        damaged[rng.randrange(len(whole))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read_snapshot(path)
        except InputError as error:
            said.append(str(error))
    assert len(said) > 100
    assert [message for message in said if "\n" in message] == []


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"a": 1}, 'it has neither "segments" nor "device_traces"'),
        ("words", "expected a mapping, found str"),
        ({"segments": 3}, "expected a list, found int"),
        ({"segments": [{"address": "x"}]}, "expected a whole number, found str"),
        ({"device_traces": [[{"action": 4}]]}, "expected words, found int"),
        (
            {"device_traces": [[{"action": "alloc", "addr": 1, "size": -1}]]},
            "a size or an address is -1",
        ),
        (
            {"device_traces": [[{"action": "alloc", "addr": 1 << 64, "size": 1}]]},
            "a number has more than 64 bits",
        ),
        (
            {
                "device_traces": [
                    [{"action": "alloc", "addr": 1, "size": 1, "frames": 2}]
                ]
            },
            "expected a list of frames, found int",
        ),
    ],
)
def test_another_pickle_says_what_was_seen(
    tmp_path: Path, content: Any, why: str
) -> None:
    """What is no snapshot, or says what cannot be."""
    path = tmp_path / "rank0.pickle"
    path.write_bytes(pickle.dumps(content))

    with pytest.raises(InputError) as raised:
        read_snapshot(path)
    assert why in str(raised.value)


def test_one_list_a_million_times_ends(tmp_path: Path) -> None:
    """A file of 20 kB that holds one list of events ten thousand times."""
    event = {"action": "alloc", "addr": 1, "size": 1}
    path = tmp_path / "rank0.pickle"
    path.write_bytes(pickle.dumps({"device_traces": [[event] * 5000] * 5000}))

    with pytest.raises(InputError, match="more entries than the file has bytes"):
        read_snapshot(path)


def test_a_file_that_would_fill_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than what is read, packed or not; and no more than that is looked at."""
    monkeypatch.setattr(reading, "MAX_BYTES", MIB)
    path = tmp_path / "rank0.pickle"
    path.write_bytes(gzip.compress(bytes(64 * MIB)))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"more than 1.00 MiB.*max_entries=100_000"):
        read_snapshot(path)
    assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    tracemalloc.stop()


def test_kinds_of_a_newer_torch_move_nothing(tmp_path: Path) -> None:
    """An action that is not known is named, and the rest is read."""
    content = small().content()
    content["device_traces"][0][4]["action"] = "compact"
    path = tmp_path / "rank0.pickle"
    path.write_bytes(pickle.dumps(content))

    found = read_snapshot(path)

    assert found.unknown_actions == ("compact",)
    assert found.histories[0].action.tolist()[-1] == Action.SNAPSHOT
