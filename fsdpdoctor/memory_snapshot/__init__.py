"""CUDA memory snapshots: what an allocator held, for what, and whose it was.

`torch.cuda.memory._dump_snapshot` writes them. A snapshot is no run: it has allocations
with their stacks, and neither steps nor collectives. A path becomes a `Snapshot`, its
history becomes `Allocations`, these become a `SnapshotReport`.
"""
