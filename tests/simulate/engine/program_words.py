"""Programs of the simulator as lines that a test can hold against others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fsdpdoctor.simulate.engine.opcodes import (
    COMPUTE,
    FINALIZE,
    FLUSH,
    GATHER,
    HOST,
    REDUCE,
    RESHARD,
    ROOT,
    SYNC,
    USE,
    WAIT_GATHER,
    WAIT_POST,
    WAIT_SCATTER,
    Held,
    Meta,
    Op,
    Program,
)
from fsdpdoctor.simulate.engine.schedule import program
from fsdpdoctor.simulate.engine.step import (
    Checkpoint,
    Node,
    Step,
)
from tests.simulate.steps import step

REENTRANT = Checkpoint.REENTRANT

OF_UNIT = "copy-in gather small-gather copy-out reduce-copy-in scatter all-reduce clone"
OF_SEGMENT = "forward backward recompute launch-forward launch-backward"
REST = (
    "root pre-forward unshard wait post-forward pre-backward post-backward reduce "
    "final input loss launch-loss before after launch-after"
)
NAMES = {
    GATHER: "gather",
    USE: "use",
    RESHARD: "reshard",
    REDUCE: "reduce",
    WAIT_SCATTER: "wait-scatter",
    WAIT_POST: "wait-post",
    FINALIZE: "finalize",
    WAIT_GATHER: "wait-gather",
    SYNC: "sync",
    FLUSH: "flush",
    ROOT: "root",
}
COMMUNICATORS = "shard reduce replicate post-forward"


def cost(one: Step, index: int) -> str:
    """What an index into the durations stands for."""
    units, segments = 8 * len(one.units), 5 * len(one.segments)
    if index < 0:
        return "-"
    if index < units:
        return f"{OF_UNIT.split()[index % 8]}.{index // 8}"
    if index < units + segments:
        index -= units
        return f"{OF_SEGMENT.split()[index % 5]}.{index // 5}"
    return REST.split()[index - units - segments]


def words(one: Step, op: Op) -> str:
    """An operation, its costs by name."""
    code, *rest = op
    if code in (HOST, COMPUTE):
        return " ".join(cost(one, index) for index in rest)
    said = [NAMES[code]]
    if code == GATHER:
        slot, *costs, comm, async_op, event = rest
        said += [f"#{slot}", *(cost(one, index) for index in costs)]
        said += [COMMUNICATORS.split()[comm], *(["async"] if async_op else [])]
        said += [f"after {event}"] if event >= 0 else []
    elif code == USE:
        slot, *costs, waits, defers = rest
        said += [f"#{slot}", *(cost(one, index) for index in costs)]
        said += ["waits"] * waits + ["defers"] * defers
    elif code == RESHARD:
        said += [f"{rest[0]}", cost(one, rest[1])]
    elif code == REDUCE:
        id_, call, copy, length, comm, more = rest
        said += [f"#{id_}", *(cost(one, index) for index in (call, copy, length))]
        said += [COMMUNICATORS.split()[comm], cost(one, more)]
    elif code == ROOT:
        said = [cost(one, rest[0])]
    elif rest:
        said += [f"#{rest[0]}"]
    return " ".join(said)


def about(meta: Meta) -> str:
    """Phase, micro-batch, unit, and by which unit: `f0 1<0`."""
    unit, phase, micro_batch, by_unit, flags, _ = meta
    who = "-" if unit < 0 else str(unit)
    by = "" if by_unit < 0 else f"<{by_unit}"
    return f"{'ofbs'[phase]}{micro_batch} {who}{by}" + (f" +{flags}" if flags else "")


def listing(one: Step) -> list[str]:
    """Every operation of a step, and what it is about."""
    plan = program(one)
    return [
        f"{about(meta)}: {words(one, op)}"
        for op, meta in zip(plan.ops, plan.meta, strict=True)
    ]


def what(line: str) -> str:
    """The first word of an operation in a listing."""
    return line.split(": ")[1].split()[0]


def lines(text: str) -> list[str]:
    """Of a listing in a test."""
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def brief(plan: Program, *codes: int) -> str:
    """Of some kinds, each operation with its unit: `gather1 use1`."""
    return " ".join(
        f"{NAMES[op[0]]}{meta[0] if meta[0] >= 0 else ''}"
        for op, meta in zip(plan.ops, plan.meta, strict=True)
        if op[0] in codes
    )


def moves(one: Step, *kinds: Held) -> list[str]:
    """What is taken and given back, and the operation that comes after it."""
    plan = program(one)
    after = [words(one, op).split()[0] for op in plan.ops] + ["end"]
    return [
        f"{after[at]}: {Held(held).name.lower()}.{unit} {delta:+d}"
        for at, held, unit, delta in plan.moves
        if not kinds or held in kinds
    ]


def live(plan: Program) -> Iterator[int]:
    """Bytes of FSDP2's own, after each move."""
    total = 0
    for _, _, _, delta in plan.moves:
        total += delta
        yield total


def backward_of(one: Step) -> list[str]:
    """A listing, from the root's pre-backward to the last callback."""
    found = listing(one)
    first = next(i for i, line in enumerate(found) if line.endswith("pre-backward"))
    return found[first : found.index("b0 0<0: final")]


def pieces(*, inner: tuple[tuple[int, ...], ...] = ((1,), (2,)), **known: Any) -> Step:
    """A root around one unit of two layers, each recomputed reentrantly by itself."""
    base = step(2)
    params = tuple(p for unit in base.units[1:] for p in unit.params)
    both = replace(base.units[1], fqn="both", params=params, pieces=len(inner))
    last = max(at for each in inner for at in each) + 1
    items = tuple(Node(units=(), items=each) for each in inner)
    given: dict[str, Any] = {
        "units": (base.units[0], replace(both, **known)),
        "segments": base.segments[:1] * (last + 1),
        "root": Node(
            units=(0,),
            items=(0, Node(units=(1,), items=items, checkpoint=REENTRANT), last),
        ),
    }
    return replace(base, **given)
