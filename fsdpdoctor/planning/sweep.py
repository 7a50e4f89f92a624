"""A sweep: one script rehearsed in many configurations, and which of them are worth it.

A dimension is a name and its values. Some are the job's (`world`, `hsdp`), some are
said to FSDP2 in the script's place (`reshard`, `wrap`, `checkpointing`), all others
are the script's own and go to it through `script_settings`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdpdoctor.changes.plan import ALL, Plan
from fsdpdoctor.errors import UsageError
from fsdpdoctor.untrusted.headers import MOST_RANKS

AS_IS = "as-is"
"""A value that leaves the script as it is."""

DEFAULT_VALUES: Mapping[str, tuple[str, ...]] = {
    "micro-batch": ("1", "2", "4", "8"),
    "reshard": ("true", "false"),
    "wrap": (AS_IS, "2"),
    "hsdp": ("off", "on"),
    "checkpointing": ("off", "on"),
}
"""Of a dimension that is named without any."""

OURS = ("world", "reshard", "wrap", "hsdp", "checkpointing")
"""Dimensions for which the script needs to take nothing."""

_LARGER_NEEDS_MORE = ("micro-batch", "sequence")
"""What does not fit at one value fits at no larger one, all else being equal."""

MOST = 2000
"""Configurations of one sweep: more are a slip of the pen."""

Choice = Mapping[str, str]
"""A value for each dimension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """What is varied, and through which values."""

    name: str
    values: tuple[str, ...]


def parse_sweep(text: str) -> tuple[Dimension, ...]:
    """`world=8..512,micro-batch=1/2/6,reshard`. Raises UsageError."""
    found: dict[str, Dimension] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, values = part.partition("=")
        if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
            raise UsageError(f"--sweep: {part!r} is no dimension, such as world=8..64")
        if name in found:
            raise UsageError(f"--sweep names {name} twice")
        found[name] = Dimension(name=name, values=_values(name, values))
    if not found:
        raise UsageError("--sweep is empty; for example world=8..64,micro-batch=1..8")
    return tuple(found.values())


def _values(name: str, text: str) -> tuple[str, ...]:
    if not text:
        if name in DEFAULT_VALUES:
            return DEFAULT_VALUES[name]
        raise UsageError(f"--sweep: which values of {name}? For example {name}=1..8")
    values: dict[str, None] = {}
    for piece in text.split("/"):
        if (span := re.fullmatch(r"(\d{1,20})\.\.(\d{1,20})", piece)) is not None:
            values |= dict.fromkeys(_doubled(name, int(span[1]), int(span[2])))
        elif piece:
            values[piece] = None
        else:
            raise UsageError(f"--sweep: {name}={text} has an empty value")
    for value in values:
        _check(name, value)
    return tuple(values)


def _doubled(name: str, first: int, last: int) -> Iterator[str]:
    if not 1 <= first <= last:
        raise UsageError(f"--sweep: {name}={first}..{last} is no range")
    while first <= last:
        yield str(first)
        first *= 2


_EXPECTED: Mapping[str, tuple[str, str]] = {
    "world": (r"[1-9]\d*", "a number of ranks"),
    "micro-batch": (r"[1-9]\d*", "a number"),
    "reshard": (
        r"as-is|true|false|[1-9]\d*",
        "as-is, true, false or a number of ranks",
    ),
    "hsdp": (r"off|on|[1-9]\d*", "off, on (a replica in each node) or replicas"),
    "wrap": (
        r"as-is|root-split|[1-9]\d*|[A-Za-z_]\w*",
        "as-is, root-split, how many units become one, or a class to make units of",
    ),
    "checkpointing": (r"as-is|on|off", "as-is, on or off"),
}


def _check(name: str, value: str) -> None:
    pattern, words = _EXPECTED.get(name, (r"[^,/]+", "a value"))
    if not re.fullmatch(pattern, value):
        raise UsageError(f"--sweep: {name}={value}; expected {words}")
    # Of a word with thousands of digits Python makes no number.
    too_long = len(value) > len(str(MOST_RANKS))
    if name == "world" and (too_long or int(value) > MOST_RANKS):
        shown = f"{value[:20]}..." if len(value) > 20 else value
        raise UsageError(f"--sweep: {name}={shown}; expected at most {MOST_RANKS:,}")


def choices(dimensions: Sequence[Dimension], node_size: int) -> list[Choice]:
    """Every combination that is a job, the last dimension fastest.

    Raises UsageError.
    """
    count = 1
    for dimension in dimensions:
        count *= len(dimension.values)
    if count > MOST:
        raise UsageError(f"--sweep asks for {count:,} configurations; at most {MOST:,}")
    names = [d.name for d in dimensions]
    found = (
        dict(zip(names, values, strict=True))
        for values in itertools.product(*(d.values for d in dimensions))
    )
    return [one for one in found if _is_job(one, node_size)]


def replicas_of(choice: Choice, node_size: int) -> int:
    """Of HSDP; 1: none."""
    said = choice.get("hsdp", "off")
    if said == "off":
        return 1
    return max(1, int(choice["world"]) // node_size) if said == "on" else int(said)


def _is_job(choice: Choice, node_size: int) -> bool:
    """Whether it is one, and not another one's twin: HSDP needs several replicas."""
    if choice.get("hsdp", "off") == "off":
        return True
    replicas, world = replicas_of(choice, node_size), int(choice["world"])
    return 1 < replicas < world and world % replicas == 0


def plan_of(choice: Choice, node_size: int) -> Plan | None:
    """What is said to FSDP2 in the script's place; None: nothing."""
    reshard, wrap = choice.get("reshard", AS_IS), choice.get("wrap", AS_IS)
    plan: dict[str, object] = {}
    if reshard != AS_IS:
        size = int(reshard) if reshard.isdecimal() else reshard == "true"
        plan["reshard_after_forward"] = {ALL: size}
        if reshard.isdecimal():
            # Checked against the ranks that there are to reshard to.
            plan["world_size"] = int(choice["world"])
            if (replicas := replicas_of(choice, node_size)) > 1:
                plan["replicate"] = replicas
    if wrap == "root-split":
        plan["split_root"] = True
    elif wrap.isdecimal():
        plan["merge"] = int(wrap)
    elif wrap != AS_IS:
        plan["wrap"] = wrap
    return Plan(**plan) if plan else None  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a configuration."""

    choice: Choice
    fits: bool | None  # None: it could not be rehearsed
    reason: str = ""  # why it does not fit, or failed
    step_ns: int | None = None
    tokens: int | None = None  # of a rank, in a step
    samples: int | None = None  # the same, where what the model is given is no text
    reserved_bytes: int | None = None  # at the most
    needed_bytes: int | None = None
    room_bytes: int | None = None
    tight: bool = False  # the allocator gave its cache back to go on
    command: tuple[str, ...] = ()  # that rehearses it again

    @property
    def usable(self) -> bool:
        """Whether it is to be compared with others."""
        return self.fits is True and self.step_ns is not None

    @property
    def unit(self) -> str:
        """What is counted: tokens, or samples of a model that is given none."""
        return "samples" if self.tokens is None and self.samples else "tokens"

    @property
    def per_second(self) -> float | None:
        """Tokens, or samples, of one device."""
        return self.with_room_per_second if self.usable else None

    @property
    def with_room_per_second(self) -> float | None:
        """The same, also of what does not fit: as fast as it would be if it did."""
        done = self.tokens if self.unit == "tokens" else self.samples
        return done * 1e9 / self.step_ns if done and self.step_ns else None

    def price_per_million(self, per_hour: float | None) -> float | None:
        """Of a million tokens or samples, where a device's hour costs so much."""
        speed = self.per_second
        if per_hour is None or not speed:
            return None
        return per_hour / 3600 / speed * 1e6


def cannot_fit(choice: Choice, done: Sequence[Outcome]) -> Outcome | None:
    """A smaller one of the same that did not fit, so that this one need not run."""
    for other in done:
        if other.fits is not False or set(other.choice) != set(choice):
            continue
        differ = [n for n in choice if choice[n] != other.choice[n]]
        if len(differ) == 1 and differ[0] in _LARGER_NEEDS_MORE:
            smaller, this = other.choice[differ[0]], choice[differ[0]]
            if smaller.isdecimal() and this.isdecimal() and int(smaller) < int(this):
                return other
    return None


def front(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those that no other one beats in speed without needing more memory."""
    known = [o for o in outcomes if o.per_second and o.reserved_bytes]
    known.sort(key=lambda o: (-(o.per_second or 0), o.reserved_bytes or 0))
    kept: list[Outcome] = []
    least: int | None = None
    for one in known:
        assert one.reserved_bytes is not None
        if least is None or one.reserved_bytes < least:
            kept.append(one)
            least = one.reserved_bytes
    return kept


def best(outcomes: Sequence[Outcome], count: int = 3) -> list[Outcome]:
    """The fastest for each device; of two alike, the one that takes less memory.

    Not those whose allocator has no room to spare: a real one is slower than it seems.
    """
    known = [o for o in outcomes if o.per_second]
    roomy = [o for o in known if not o.tight] or known
    roomy.sort(key=lambda o: (-(o.per_second or 0), o.reserved_bytes or 0))
    return roomy[:count]
