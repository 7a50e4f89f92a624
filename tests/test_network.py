"""The modelled network: what a link costs, and the words that describe it."""

from __future__ import annotations

import pytest

from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import (
    DEFAULT_WIRE,
    PRESETS,
    Link,
    NetworkModel,
    Reach,
    Role,
    parse_link,
    parse_network,
)
from fsdpdoctor.quantities import US
from fsdpdoctor.schema import Kind

GB = 10**9
LINK = Link(name="l", bytes_per_second=1 * GB, latency_ns=10 * US)


@pytest.mark.parametrize(
    ("kind", "expected_us"),
    [
        (Kind.ALL_GATHER, 10 + 750),
        (Kind.REDUCE_SCATTER, 10 + 750),
        (Kind.ALL_REDUCE, 10 + 1500),
        (Kind.COLLECTIVE, 10 + 1000),
    ],
)
def test_a_collective_costs_latency_and_the_bytes_it_must_move(
    kind: Kind, expected_us: int
) -> None:
    """1 MB over 4 ranks at 1 GB/s: 3/4 of it, twice that, or all of it."""
    assert LINK.duration_ns(kind, 1_000_000, 4) == expected_us * US


@pytest.mark.parametrize(
    ("text", "gb_per_second"),
    [("8xib400", 368.0), ("2x25GB/s@5us", 50.0), ("1xnvlink4", 360.0)],
)
def test_the_adapters_of_a_node_add_up(text: str, gb_per_second: float) -> None:
    """With the latency of one, and its own name."""
    link = parse_link(text)
    assert link.bytes_per_second == gb_per_second * GB
    assert str(parse_network("8xib400")) == "8xib400 (368 GB/s, 30.0 us)"


@pytest.mark.parametrize("text", ["0xib400", "65xib400", "xib400", "8x", "-1xib400"])
def test_what_is_no_number_of_adapters_is_no_link(text: str) -> None:
    """And the message says how they are written."""
    with pytest.raises(UsageError, match="8xib400"):
        parse_link(text)


def test_a_group_of_one_takes_no_time() -> None:
    """There is nobody to talk to."""
    assert LINK.duration_ns(Kind.ALL_REDUCE, 1_000_000, 1) == 0


def speeds(wire: NetworkModel, kind: Kind = Kind.ALL_GATHER) -> list[float]:
    """The bandwidths, in GB/s, of shard and replicate groups inside and across."""
    return [
        wire.link(role, reach, kind).bytes_per_second / GB
        for role in (Role.SHARD, Role.REPLICATE)
        for reach in Reach
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("25GB/s", [25.0] * 4),
        ("200Gb/s", [25.0] * 4),
        ("200Gbps@5us", [25.0] * 4),
        ("ib400", [46.0] * 4),
        ("shard=nvlink4,replicate=ib400", [360.0, 360.0, 46.0, 46.0]),
        ("intra=20GB/s,inter=5GB/s", [20.0, 5.0, 20.0, 5.0]),
        ("intra=20GB/s,inter=5GB/s,shard=7GB/s", [7.0, 7.0, 20.0, 5.0]),
        (DEFAULT_WIRE, [360.0, 46.0, 360.0, 46.0]),
    ],
)
def test_bandwidths_are_read_as_written(text: str, expected: list[float]) -> None:
    """Each form that `--bandwidth` takes, and which name beats which."""
    assert speeds(parse_network(text)) == expected


def test_a_collective_may_have_its_own_link() -> None:
    """A rule for a kind, and one for a kind on one role, leave the others alone."""
    wire = parse_network("10GB/s,reduce-scatter=5GB/s,shard:all-gather=2GB/s")

    assert speeds(wire, Kind.REDUCE_SCATTER) == [5.0] * 4
    assert speeds(wire, Kind.ALL_GATHER) == [2.0, 2.0, 10.0, 10.0]
    assert speeds(wire, Kind.ALL_REDUCE) == [10.0] * 4


def test_other_groups_use_the_slower_of_shard_and_replicate() -> None:
    """The user's own groups, where only FSDP2's two are given."""
    wire = parse_network("shard=20GB/s,replicate=2GB/s")
    link = wire.link(Role.OTHER, Reach.INTRA, Kind.ALL_REDUCE)
    assert link.bytes_per_second == 2 * GB


def test_a_latency_can_be_given_to_anything() -> None:
    """After a preset as after a speed."""
    assert parse_link("nvlink4@3us") == Link(
        name="nvlink4@3us",
        bytes_per_second=PRESETS["nvlink4"].bytes_per_second,
        latency_ns=3 * US,
    )
    assert parse_link("25GB/s@1.5ms").latency_ns == 1500 * US


def test_a_wire_says_what_it_is() -> None:
    """In the words it was given, with the figures behind a preset."""
    assert str(parse_network("shard=nvlink4@3us,1MB/s")) == (
        "shard=nvlink4@3us (360 GB/s, 3.00 us), 1MB/s (20.0 us)"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "'fast' is no link; expected one of nvlink4"),
        ("25", "'25' is no link"),
        (f"{'9' * 5000}xib400", "9xib400' is no link"),
        ("25GB/s@soon", "'soon' is no latency; expected 10us"),
        ("25GB/s@1e99us", "ns; expected 0 to 60.0 s"),
        ("0GB/s", "bandwidth 0.0 bytes/s; expected more than zero"),
        ("shards=nvlink4", "'shards' is no group or collective; expected shard"),
        ("shard=nvlink4", "no link to groups inside a node: add one without a name"),
        ("ib100,ib200", "names the common link twice"),
        ("", "'' is no link"),
    ],
)
def test_says_what_is_wrong_with_a_bandwidth(text: str, message: str) -> None:
    """What was seen and what was expected, in one line."""
    with pytest.raises(UsageError, match=message):
        parse_network(text)
