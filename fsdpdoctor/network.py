"""A model of the network: how long a collective takes, by group and kind.

Standard library only, so that a command can check its arguments, and the
simulator price a change, where torch is not installed. `wire_group` makes
process groups that take the times modelled here.

[Note: What the wire models] A collective over N ranks moves, per rank, the bytes
that no algorithm can avoid: (N-1)/N of a gather's output or a reduce-scatter's
input, twice that for an all-reduce. It lasts its link's latency plus those bytes
over its link's bandwidth, which is therefore a bus bandwidth as nccl-tests
prints it. One communicator runs one collective at a time. Ranks arrive together:
there is no straggler, no congestion and no dependence of latency on N.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from fsdpdoctor.errors import UsageError
from fsdpdoctor.quantities import (
    SECOND,
    US,
    duration,
    gbps,
    parse_duration,
    parse_rate,
)
from fsdpdoctor.schema import COLLECTIVE_KINDS, Kind


class Role(StrEnum):
    """What a process group is to the job; decides which link it uses."""

    SHARD = "shard"  # gathers and reduce-scatters run here
    REPLICATE = "replicate"  # HSDP's all-reduces run here
    OTHER = "other"  # anything else: the user's own groups


class Reach(StrEnum):
    """Whether a process group stays inside a node."""

    INTRA = "intra"
    INTER = "inter"


MOST_LATENCY_NS = 60 * SECOND
"""No wire on earth has a thousandth of it; more is a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What one rank has towards its peers: a latency and a bus bandwidth."""

    name: str
    bytes_per_second: float
    latency_ns: int

    def __post_init__(self) -> None:
        if not (self.bytes_per_second > 0 and math.isfinite(self.bytes_per_second)):
            raise UsageError(
                f"link {self.name} has bandwidth {self.bytes_per_second} bytes/s; "
                "expected more than zero"
            )
        if not 0 <= self.latency_ns <= MOST_LATENCY_NS:
            raise UsageError(
                f"link {self.name} has a latency of {self.latency_ns:.3g} ns; expected "
                f"0 to {duration(MOST_LATENCY_NS)}"
            )

    def duration_ns(self, kind: Kind, payload_bytes: int, group_size: int) -> int:
        """How long a collective lasts once it has the communicator.

        `payload_bytes` are of the large side: a gather's output, a
        reduce-scatter's input, an all-reduce's tensor. A group of one rank
        moves nothing and takes no time.
        """
        if group_size <= 1:
            return 0
        moved = moved_bytes(kind, payload_bytes, group_size)
        return self.latency_ns + round(moved * SECOND / self.bytes_per_second)

    def __str__(self) -> str:
        preset = _adapters(self.name.partition("@")[0])[1].lower() in PRESETS
        speed = f"{gbps(self.bytes_per_second)}, " if preset else ""
        return f"{self.name} ({speed}{duration(self.latency_ns)})"


def moved_bytes(kind: Kind, payload_bytes: int, group_size: int) -> float:
    """The bytes that each rank sends, see [Note: What the wire models]."""
    return payload_bytes * bus_factor(kind, group_size)


def bus_factor(kind: Kind, group_size: int) -> float:
    """What an algorithm's bandwidth is multiplied by for the bus's, as NCCL has it."""
    share = (group_size - 1) / group_size
    match kind:
        case Kind.ALL_GATHER | Kind.REDUCE_SCATTER:
            return share
        case Kind.ALL_REDUCE:
            return 2 * share
        case _:
            return 1.0


# Bandwidths are what nccl-tests reaches with large messages, not what the data
# sheet says: the share of the line rate is beside each. Latencies are those of a
# small collective inside a node (NVLink, PCIe) or across a switch (the others).
PRESETS: dict[str, Link] = {
    link.name: link
    for link in (
        # H100: 18 links x 25 GB/s each way = 450 GB/s; ring all-gather over eight
        # reaches about 80 %.
        Link(name="nvlink4", bytes_per_second=360e9, latency_ns=15 * US),
        # B200: 18 links x 50 GB/s each way = 900 GB/s, taken at the same 80 %.
        Link(name="nvlink5", bytes_per_second=720e9, latency_ns=15 * US),
        # x16 after 128b/130b coding is 31.5 GB/s each way; transfers between
        # GPUs through a switch or the root complex reach about 70 %.
        Link(name="pcie4", bytes_per_second=22e9, latency_ns=20 * US),
        # Twice that per lane, the same 70 %.
        Link(name="pcie5", bytes_per_second=44e9, latency_ns=20 * US),
        # One adapter per GPU, 100/200/400 Gb/s = 12.5/25/50 GB/s; RDMA with
        # large messages reaches about 92 %.
        Link(name="ib100", bytes_per_second=11.5e9, latency_ns=30 * US),
        Link(name="ib200", bytes_per_second=23e9, latency_ns=30 * US),
        Link(name="ib400", bytes_per_second=46e9, latency_ns=30 * US),
        # TCP through the kernel: about 90 % of 1.25 and 3.1 GB/s, and of 12.5
        # GB/s about half, where copies and interrupts become the limit.
        Link(name="eth10", bytes_per_second=1.1e9, latency_ns=100 * US),
        Link(name="eth25", bytes_per_second=2.8e9, latency_ns=100 * US),
        Link(name="eth100", bytes_per_second=6.3e9, latency_ns=100 * US),
    )
}

MOST_ADAPTERS = 64
"""Of one node."""

CUSTOM_LATENCY_NS = 20 * US
"""Of a bandwidth given as a number without `@`: between NVLink's and InfiniBand's."""

_KINDS = {kind.label: kind for kind in COLLECTIVE_KINDS}
_SCOPES = (Role.SHARD, Role.REPLICATE, Reach.INTRA, Reach.INTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A link, and the collectives that use it. None: any."""

    link: Link
    scope: Role | Reach | None = None
    kind: Kind | None = None

    def fits(self, role: Role, reach: Reach, kind: Kind) -> bool:
        """Whether such a collective may use the link."""
        return self.scope in (None, role, reach) and self.kind in (None, kind)

    @property
    def precedence(self) -> tuple[bool, bool, bool]:
        """A named role beats a named reach beats a kind beats anything."""
        return (
            isinstance(self.scope, Role),
            isinstance(self.scope, Reach),
            self.kind is not None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkModel:
    """The network of a job: which link a collective uses."""

    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        for reach in Reach:
            for kind in Kind:
                if not any(r.fits(Role.OTHER, reach, kind) for r in self.rules):
                    raise UsageError(
                        f"--bandwidth gives no link to groups {_PLACES[reach]}: "
                        "add one without a name, as in ib400,shard=nvlink4"
                    )

    def link(self, role: Role, reach: Reach, kind: Kind) -> Link:
        """The link of a collective: of the rules that fit, the most exact one."""
        fitting = [rule for rule in self.rules if rule.fits(role, reach, kind)]
        return max(fitting, key=lambda rule: rule.precedence).link

    def __str__(self) -> str:
        return ", ".join(_rule_text(rule) for rule in self.rules)


_PLACES = {Reach.INTRA: "inside a node", Reach.INTER: "across nodes"}


def _rule_text(rule: Rule) -> str:
    names = [str(rule.scope)] if rule.scope is not None else []
    names += [rule.kind.label] if rule.kind is not None else []
    return f"{':'.join(names)}={rule.link}" if names else str(rule.link)


_NOTED = "on a modelled wire, "
_SPEED = re.compile(r" \([^()]*\)")
_BETWEEN = re.compile(r"(?<=\)), ")


def wire_note(wire: NetworkModel) -> str:
    """What a rehearsal's notes say of its links."""
    return f"{_NOTED}{wire}"


def noted_wire(notes: Iterable[str]) -> str | None:
    """The links of a rehearsal from its notes, as `--bandwidth` takes them; None: the
    notes are of no rehearsal.
    """
    for note in notes:
        _, noted, wire = note.partition(_NOTED)
        if noted:
            return ",".join(_SPEED.sub("", part) for part in _BETWEEN.split(wire))
    return None


DEFAULT_WIRE = "intra=nvlink4,inter=ib400"
"""What `parse_network` makes of nothing: a node of H100s, an adapter for each GPU."""


def parse_network(text: str) -> NetworkModel:
    """Read `--bandwidth`: links with commas between, each perhaps named.

    `nvlink4`, `25GB/s`, `200Gb/s@5us`, `8xib400`, `shard=nvlink4,replicate=ib400`,
    `intra=nvlink4,inter=10GB/s`, `ib400,reduce-scatter=20GB/s`,
    `ib400,shard:all-gather=30GB/s`. With only `shard` and `replicate` named, every
    other group uses the slower of the two. Raises UsageError.
    """
    rules = tuple(_parse_rule(part.strip()) for part in text.split(","))
    named = [(rule.scope, rule.kind) for rule in rules]
    if twice := [name for name in named if named.count(name) > 1]:
        scope, kind = twice[0]
        raise UsageError(
            f"--bandwidth {text!r} names {scope or kind or 'the common link'} twice"
        )
    scopes = {rule.scope for rule in rules if rule.kind is None}
    if None not in scopes and {Role.SHARD, Role.REPLICATE} <= scopes:
        slowest = min((rule.link for rule in rules), key=lambda k: k.bytes_per_second)
        rules = (*rules, Rule(link=slowest))
    return NetworkModel(rules=rules)


def _parse_rule(text: str) -> Rule:
    names, equals, link = text.rpartition("=")
    scope: Role | Reach | None = None
    kind: Kind | None = None
    for name in names.split(":") if equals else ():
        known = {str(s): s for s in _SCOPES}
        if name in known and scope is None:
            scope = known[name]
        elif name in _KINDS and kind is None:
            kind = _KINDS[name]
        else:
            raise UsageError(
                f"--bandwidth {text!r}: {name!r} is no group or collective; expected "
                f"{', '.join((*known, *_KINDS))}"
            )
    return Rule(link=parse_link(link), scope=scope, kind=kind)


def parse_link(text: str) -> Link:
    """Read one link: a preset or a bandwidth, either with `@latency`.

    `8xib400`: eight adapters of a node at once. A group that fills nodes crosses from
    each to the next on all its adapters, and nccl-tests reports them together; a group
    with one rank in a node has one. Raises UsageError.
    """
    speed, at, latency = text.strip().partition("@")
    adapters, each = _adapters(speed)
    link = PRESETS.get(each.lower()) or _custom(each)
    if link is not None and adapters > 1:
        link = replace(
            link, name=speed, bytes_per_second=link.bytes_per_second * adapters
        )
    if link is None:
        raise UsageError(
            f"--bandwidth {text!r} is no link; expected one of "
            f"{', '.join(PRESETS)}, or a speed such as 25GB/s, 200Gb/s or 25GB/s@10us; "
            "8xib400 for a node's eight adapters"
        )
    if not at:
        return link
    latency_ns = parse_duration(latency)
    if latency_ns is None:
        raise UsageError(
            f"--bandwidth {text!r}: {latency!r} is no latency; expected 10us"
        )
    return replace(link, name=text.strip(), latency_ns=latency_ns)


def adapters_hint(model: NetworkModel, node_size: int, world_size: int) -> str | None:
    """What to give for whole nodes, where a link between nodes is a single adapter."""
    if not 1 < node_size < world_size:
        return None
    link = model.link(Role.SHARD, Reach.INTER, Kind.ALL_GATHER)
    name = link.name.partition("@")[0].lower()
    if name not in PRESETS or not name.startswith(("ib", "eth")):
        return None
    return (
        f"{link.name} is one adapter; a group that fills nodes of {node_size} ranks "
        f"crosses on all adapters of a node at once: where each rank has its own, give "
        f"inter={node_size}x{name}"
    )


def _adapters(speed: str) -> tuple[int, str]:
    """How many, and which: "8xib400"."""
    count, times, each = speed.partition("x")
    known = times and count.isdecimal() and len(count) < 10
    if not known or not 1 <= int(count) <= MOST_ADAPTERS:
        return 1, speed
    return int(count), each


def _custom(speed: str) -> Link | None:
    rate = parse_rate(speed)
    if rate is None:
        return None
    return Link(name=speed, bytes_per_second=rate, latency_ns=CUSTOM_LATENCY_NS)
