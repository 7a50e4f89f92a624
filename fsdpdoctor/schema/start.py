"""How long a rank took until its first step had ended."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartSpec:
    """From the process's start to the end of its first optimizer step."""

    process_unix_ns: int  # when the system made the process
    total_ns: int
    import_ns: int  # until `init_process_group` was called: interpreter, imports
    init_ns: int  # in `init_process_group`
    mesh_ns: int  # in `init_device_mesh`, without an `init_process_group` inside
    wrap_ns: int  # in `fully_shard`, where it shards
    first_step_ns: int  # from the first forward to the end of the step
