"""The fields of a memory snapshot's JSON, against their table in docs/json.md."""

from __future__ import annotations

from pathlib import Path

from fsdpdoctor.renderers.snapshots.snapshot_pages import SnapshotDocument
from tests.memory_snapshot.drawn_snapshot import Drawn, draw_steps
from tests.test_docs_formats import JSON, Field, declared, documented, faults, printed


def test_every_field_of_memory_snapshots_is_documented(tmp_path: Path) -> None:
    """All that their values have; and of two ranks, of which one leaks and ran out of
    memory, all that is printed.
    """
    whole = dict(declared(SnapshotDocument))
    assert documented(JSON["Memory snapshots"].rows) == whole
    for rank, leak in ((0, 0), (1, 640)):
        drawn = Drawn()
        draw_steps(drawn, 6, leak=leak)
        drawn.oom(1 << 30, 0, None)
        drawn.write(tmp_path / f"rank{rank}.pickle")

    document = printed("analyze", str(tmp_path))

    whole[""] = Field("object", nullable=False)
    assert list(faults(document, whole, set(), "")) == []
