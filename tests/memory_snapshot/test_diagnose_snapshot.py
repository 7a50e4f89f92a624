"""What a snapshot shows, against what was drawn: to the byte."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fsdpdoctor.memory_snapshot.diagnose_snapshot import (
    HOW_TO_RECORD,
    NO_HISTORY,
    STATE_ONLY,
    WITHOUT_STACKS,
    diagnose_snapshot,
)
from fsdpdoctor.memory_snapshot.purpose import NO_PYTHON, NO_STACK
from fsdpdoctor.memory_snapshot.snapshot_report import (
    BucketRow,
    DeviceReport,
    Held,
    SnapshotReport,
)
from fsdpdoctor.memory_snapshot.unit_labels import NO_RANGE_THEN, NO_RANGES
from fsdpdoctor.schema.memory import Bucket
from tests.memory_snapshot.drawn_snapshot import (
    COPY_OUT,
    FORWARD,
    LOOP,
    SEGMENT,
    SHARD,
    Drawn,
    Layout,
    draw_steps,
)

REAL = Path(__file__).parents[2] / ".." / "shared" / "traces" / "memory_snapshot"


def diagnosed(
    drawn: Drawn, folder: Path, layout: Layout = Layout.TORCH_2_13
) -> tuple[SnapshotReport, DeviceReport]:
    """What is said of a file, and of its one device."""
    report = diagnose_snapshot(drawn.write(folder / "rank0.pickle", layout))
    (device,) = report.devices
    return report, device


def by_bucket(held: Held) -> dict[str | None, int]:
    """Bytes by what they were for."""
    return {row.bucket: row.bytes for row in held.buckets}


def by_unit(held: Held) -> dict[str | None, dict[str, int]]:
    """Bytes by unit, and what they were for."""
    return {row.unit: row.buckets for row in held.units}


def two_steps(*, annotated: bool = True, python_only: bool = False) -> Drawn:
    """Of two units; most is held in the second step's backward."""
    drawn = Drawn(python_only=python_only)
    draw_steps(drawn, 2, annotated=annotated)
    return drawn


def test_the_peak_is_told_by_what_it_was_for(tmp_path: Path) -> None:
    """In the second backward: layers.1's gradient is made while its parameters are
    gathered, and both activations are there.
    """
    _, device = diagnosed(two_steps(), tmp_path)

    peak = device.peak
    assert peak is not None
    assert by_bucket(peak) == {
        "unsharded_gradients": 5000,
        "gathered_parameters": 4000,
        "optimizer_states": 4000,
        "activations": 6000,
        "sharded_parameters": 2000,
    }
    assert peak.held_bytes == 21_000
    assert (peak.before_bytes, peak.awaiting_free_bytes) == (0, 0)
    assert peak.reserved_bytes == SEGMENT


def test_the_peak_is_told_by_unit(tmp_path: Path) -> None:
    """What FSDP2 gathered and reduced, and what the unit's passes left."""
    _, device = diagnosed(two_steps(), tmp_path)

    peak = device.peak
    assert peak is not None
    assert by_unit(peak) == {
        "layers.1": {
            "gathered_parameters": 4000,
            "unsharded_gradients": 5000,
            "activations": 3000,
        },
        None: {"optimizer_states": 4000, "sharded_parameters": 2000},
        "layers.0": {"activations": 3000},
    }
    assert {row.why for row in peak.units if row.unit is None} == {NO_RANGE_THEN}
    assert {row.told_by for row in peak.units if row.unit} == {"range"}


def test_without_ranges_no_unit_is_told(tmp_path: Path) -> None:
    """The reason says how to have them; buckets do not need them."""
    _, device = diagnosed(two_steps(annotated=False), tmp_path)

    peak = device.peak
    assert peak is not None
    assert [(row.unit, row.why, row.bytes) for row in peak.units] == [
        (None, NO_RANGES, 21_000)
    ]
    assert by_bucket(peak)["gathered_parameters"] == 4000


def test_metadata_stands_for_a_unit(tmp_path: Path) -> None:
    """What the user had set with _set_memory_metadata, where no range says more."""
    drawn = Drawn()
    drawn.alloc("a", 700, FORWARD, metadata="decoder 3")
    drawn.alloc("b", 300, FORWARD)

    _, device = diagnosed(drawn, tmp_path)

    assert device.peak is not None
    assert [(row.unit, row.told_by, row.bytes) for row in device.peak.units] == [
        ("decoder 3", "metadata", 700),
        (None, None, 300),
    ]


def test_lines_are_the_user_s(tmp_path: Path) -> None:
    """FSDP2's hooks count for the line that called the module, backward's for none."""
    _, device = diagnosed(two_steps(), tmp_path)

    assert device.peak is not None
    assert [
        (row.where, row.function, row.bytes, row.allocations)
        for row in device.peak.sites
    ] == [
        ("job/model.py:20", "forward", 6000, 2),
        (None, None, 5000, 1),
        ("job/train.py:55", "main", 4000, 4),
        ("job/train.py:50", "main", 4000, 1),
        ("job/train.py:30", "main", 2000, 2),
    ]


def test_what_holds_most_shows_its_stack(tmp_path: Path) -> None:
    """Allocations of one stack together, with the units that they are of."""
    _, device = diagnosed(two_steps(), tmp_path)

    assert device.peak is not None
    most = device.peak.holders[0]
    assert (most.bytes, most.allocations, most.bucket) == (6000, 2, "activations")
    assert most.units == ("layers.0", "layers.1")
    assert most.where == "job/model.py:20"
    assert most.stack[:2] == (
        "job/model.py:20 forward",
        "modules/module.py:1789 _call_impl",
    )


def test_python_stacks_do_not_show_the_backward(tmp_path: Path) -> None:
    """stacks="python": what autograd's threads allocate and FSDP2 does not free cannot
    be told, and it is said how to have it.
    """
    drawn = Drawn(python_only=True)
    drawn.alloc("a", 500, (("??", 0, "torch::autograd::Engine::thread_main"),))

    _, device = diagnosed(drawn, tmp_path)

    assert device.peak is not None
    assert device.peak.buckets == (
        BucketRow(bucket=None, why=NO_PYTHON, bytes=500, allocations=1),
    )


def test_each_moment_adds_up(tmp_path: Path) -> None:
    """By bucket, unit and line the same bytes, at the peak and at the end."""
    _, device = diagnosed(two_steps(), tmp_path)

    for held in (device.peak, device.end):
        assert held is not None
        assert sum(row.bytes for row in held.buckets) == held.held_bytes
        assert sum(row.bytes for row in held.holders) == held.held_bytes
        parts = [(u.bytes, u.buckets) for u in held.units]
        assert sum(total for total, _ in parts) == held.held_bytes
        parts += [(line.bytes, line.buckets) for line in held.sites]
        assert sum(total for total, _ in parts) == 2 * held.held_bytes
        assert [t for t, buckets in parts if sum(buckets.values()) != t] == []


def test_rounding_is_told_apart(tmp_path: Path) -> None:
    """What was asked for, and what the allocator gave."""
    drawn = Drawn()
    drawn.alloc("a", 1, LOOP)
    drawn.alloc("b", 513, LOOP)

    _, device = diagnosed(drawn, tmp_path)

    assert device.end.held_bytes == 514
    assert device.allocated_bytes == 512 + 1024
    assert device.pools[0].requested_bytes == 514


def test_an_allocation_that_did_not_fit(tmp_path: Path) -> None:
    """What was asked for and for what, and what was there."""
    drawn = Drawn()
    drawn.alloc("a", 3000, FORWARD)
    drawn.begin("FSDP::pre_forward (layers.7)")
    drawn.oom(1 << 30, 5 << 20, COPY_OUT)

    _, device = diagnosed(drawn, tmp_path)

    (one,) = device.out_of_memory
    assert (one.asked_bytes, one.device_free_bytes) == (1 << 30, 5 << 20)
    assert (one.held_bytes, one.reserved_bytes) == (3000, SEGMENT)
    assert one.unused_bytes == SEGMENT - 3000
    assert (one.bucket, one.unit) == ("gathered_parameters", "layers.7")
    assert one.where == "job/train.py:50"


@pytest.mark.parametrize("layout", [Layout.TORCH_2_1, Layout.TORCH_2_0])
def test_older_layouts_give_the_same_peak(tmp_path: Path, layout: Layout) -> None:
    """Without times, without annotations, without the pool's number."""
    drawn = two_steps(annotated=False)
    _, now = diagnosed(drawn, tmp_path)
    _, then = diagnosed(drawn, tmp_path, layout)

    assert now.peak is not None
    assert then.peak is not None
    assert then.peak.buckets == now.peak.buckets
    assert then.peak.held_bytes == now.peak.held_bytes
    has_times = layout is Layout.TORCH_2_1
    assert (then.peak.time_us is not None) == has_times


@pytest.mark.parametrize("layout", list(Layout))
def test_a_snapshot_without_history_says_how_to_record_one(
    tmp_path: Path, layout: Layout
) -> None:
    """What is held is known; its peak is not, nor any stack."""
    drawn = Drawn(recording=False)
    drawn.alloc("a", 1000, None)

    report, device = diagnosed(drawn, tmp_path, layout)

    assert report.history == "none"
    assert report.notes == (NO_HISTORY + HOW_TO_RECORD,)
    assert device.peak is None
    assert by_bucket(device.end) == {None: 1000}
    assert device.end.buckets[0].why == NO_STACK


def test_the_state_alone_tells_what_is_held(tmp_path: Path) -> None:
    """_record_memory_history(enabled="state"): blocks have stacks, and no history."""
    drawn = Drawn(recording=False)
    drawn.alloc("a", 1000, SHARD)

    report, device = diagnosed(drawn, tmp_path)

    assert report.history == "state"
    assert report.notes == (STATE_ONLY + HOW_TO_RECORD,)
    assert by_bucket(device.end) == {"sharded_parameters": 1000}


def test_a_history_without_stacks_says_so(tmp_path: Path) -> None:
    """_record_memory_history(context=None)."""
    drawn = Drawn()
    drawn.alloc("a", 1000, None)

    report, device = diagnosed(drawn, tmp_path)

    assert report.notes == (WITHOUT_STACKS + HOW_TO_RECORD,)
    assert device.peak is not None
    assert by_bucket(device.peak) == {None: 1000}


def test_a_cut_history_is_told_by_its_blocks(tmp_path: Path) -> None:
    """A ring that is full (max_entries): what was allocated before it is held, and of
    what is held to the end the block has the stack.
    """
    drawn = two_steps()
    whole = len(drawn.events)
    drawn.events = drawn.events[whole // 2 :]

    _, device = diagnosed(drawn, tmp_path)

    peak = device.peak
    assert peak is not None
    assert peak.held_bytes == 21_000
    assert peak.before_bytes == 2000 + 4000
    assert by_bucket(peak)["sharded_parameters"] == 2000
    assert by_bucket(peak)["optimizer_states"] == 4000


def test_the_rank_is_in_the_name(tmp_path: Path) -> None:
    """As people name such files."""
    content = pickle.dumps(Drawn().content())
    found = {}
    for name in (
        "rank3.pickle",
        "mem_rank_12.pickle",
        "Rank-0_oom.pickle",
        "a7.pickle",
    ):
        (tmp_path / name).write_bytes(content)
        found[name] = diagnose_snapshot(tmp_path / name).rank

    assert found == {
        "rank3.pickle": 3,
        "mem_rank_12.pickle": 12,
        "Rank-0_oom.pickle": 0,
        "a7.pickle": None,
    }


def test_devices_are_apart(tmp_path: Path) -> None:
    """A process may use two; one that was never used is not spoken of."""
    drawn = Drawn()
    drawn.alloc("a", 1000, LOOP)
    content = drawn.content()
    second = Drawn()
    second.alloc("b", 3000, FORWARD)
    other = second.content()
    for segment in other["segments"]:
        segment["device"] = 2
    content["segments"] += other["segments"]
    content["device_traces"] += [[], *other["device_traces"]]
    path = tmp_path / "rank0.pickle"
    path.write_bytes(pickle.dumps(content))

    report = diagnose_snapshot(path)

    held = {one.device: one.end.held_bytes for one in report.devices}
    assert held == {0: 1000, 2: 3000}
    assert report.main is report.devices[1]


def swept(content: Any) -> tuple[int, int, int, Counter[str]]:
    """The peak by a sweep of its own: bytes, time and count, and bytes by line."""
    held: dict[int, dict[str, Any]] = {}
    total = most = 0
    best: tuple[int, int, Counter[str]] = (0, 0, Counter())
    for event in content["device_traces"][0]:
        if event["action"] == "alloc":
            held[event["addr"]] = event
            total += event["size"]
        else:
            total -= held.pop(event["addr"])["size"]
        if total > most:
            most = total
            lines: Counter[str] = Counter()
            for one in held.values():
                frame = one["frames"][0]
                folder, name = frame["filename"].split("/")[-2:]
                lines[f"{folder}/{name}:{frame['line']}"] += one["size"]
            best = (event["time_us"], len(held), lines)
    return most, *best


@pytest.mark.skipif(
    not (REAL / "output.pickle").exists(), reason="../shared/traces is not here"
)
def test_the_public_one() -> None:
    """Against the figure of its own project, and a sweep that shares no code."""
    path = REAL / "output.pickle"
    content = pickle.loads(path.read_bytes())
    most, time_us, count, lines = swept(content)
    before = [b["requested_size"] for s in content["segments"] for b in s["blocks"]]

    (device,) = diagnose_snapshot(path).devices

    assert most == 2_255_398_132  # mosaic's test_cmds.py: EXPECTED_MEM_PEAK
    peak = device.peak
    assert peak is not None
    assert peak.held_bytes - peak.before_bytes == most
    assert peak.before_bytes == sum(before) == 466
    assert peak.time_us == time_us == 1_759_252_840_749_560
    told = {row.bucket: (row.bytes, row.allocations) for row in peak.buckets}
    assert told == {Bucket.OTHER: (most, count), None: (466, len(before))}
    assert {row.where: row.bytes for row in peak.sites if row.where} == lines
    assert device.events == 1040
    assert device.end.held_bytes == 466
