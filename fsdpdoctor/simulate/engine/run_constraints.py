"""What a run says beside its step, that no replay needs and every change does."""

from __future__ import annotations

from dataclasses import dataclass

from fsdpdoctor.schema import UNKNOWN, BlockSpec, UnitSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConstraints:
    """What a run says beside its step, that decides which changes make sense."""

    tied: tuple[tuple[str, ...], ...] = ()  # FQNs that share one parameter
    blocks: tuple[BlockSpec, ...] = ()  # module classes that repeat
    local_world_size: int = UNKNOWN  # ranks on a node
    device_bytes: int | None = None  # of memory; None: not known
    available: tuple[str, ...] | None = None  # FSDPModule's methods; None: not known
    units: tuple[UnitSpec, ...] = ()  # as recorded: what fully_shard was told
    idle: tuple[UnitSpec, ...] = ()  # of the same root; they never ran
    parameters: int | None = None  # elements below this root; None: not known
    world_size: int | None = None  # None: the ranks of the step's mesh
    network: str | None = None  # of a rehearsal; None: its links are only seen
    inferred: bool = False  # from a trace, which names no parameters
    dtypes_shown: bool = True  # in which units are gathered: a trace may not say it
