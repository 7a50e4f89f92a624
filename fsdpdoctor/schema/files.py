"""The files of a run: their version, their names, and the rank's last events."""

import struct

SCHEMA_VERSION = 2
"""Of the files of a run. Readers refuse a larger one, and fill nothing in: a table that
came later (`TABLE_SINCE`) is empty in an older run, whose evidence lacks it."""

TABLE_SINCE = {"call_sites": 2, "stack_samples": 2}
"""The version from which on a step's record holds a table; the others it always did."""

SYNTHETIC_KEY = "fsdpdoctor_synthetic"
"""The key in a trace's head that says it was not measured, and what it was made of."""

NOT_CAPTURED = "communication_not_captured"
"""The key in a rank's health that counts the host's calls of communication, where none
of it was captured on the device: neither overlap nor exposed time can be told."""

VIEW_KEY = "fsdpdoctor_view"
"""The key in the head of a trace that was exported to be looked at: no profiler's form,
and not read back."""

STREAM_RUN_ID, STREAM_RANK = "fsdpdoctor.run_id", "fsdpdoctor.rank"
"""Keys of the metadata of a rank's stream, by which one that lies in another's place is
known."""


# [Note: The heartbeat] A file of HEARTBEAT_SLOTS fixed records, written round robin
# in memory and brought to disk 20 times a second and with each recorded step: what a
# rank did last (up to a tenth of a second before, where hooks are in C) is there even
# after SIGKILL, and all of it where the rank hangs. Slot:
# count (from 1, 0: never written), step, micro_batch, unit, kind, phase, seq, group,
# time_ns, size. A file is always written whole, so its length tells whether its slots
# have a size: earlier ones had none.
HEARTBEAT = struct.Struct("<qqiihhqiqq")
HEARTBEAT_BEFORE = struct.Struct("<qqiihhqiq")
HEARTBEAT_SLOTS = 64


def rank_stem(rank: int) -> str:
    """The name, without suffix, of a rank's files."""
    return f"rank{rank:05d}"
