"""Operators that are asked only where they ran: the C scanner gives them no row."""

from __future__ import annotations

import pytest

from fsdpdoctor.schema.string_table import StringTable
from tests.importers.reader.same_rows import decoder, read_alike

pytest.importorskip(
    "fsdpdoctor._scan", reason="it is not built: pip install . where a compiler is"
)


def test_plain_operators_are_told_where_they_ran() -> None:
    """They get no row: nothing else is asked of them. Of those whose name is asked for,
    of collectives and of what C does not take there are rows.
    """
    op = '{"ph": "X", "cat": "cpu_op", "name": "%s", "pid": %s, "tid": 5, "ts": %s%s}'
    ran = ', "dur": 1, "args": {"External id": %s}'
    chunk = ",".join(
        (
            op % ("aten::mm", 3, "1.5", ran % 7),
            op % ("c10d::all_reduce", 3, "2.5", ran % 8),
            op % ("aten::odd", 3, "35e-1", ran % 9),
            op % ("aten::\\u0061", 3, "4.5", ran % 10),
            op % ("aten::no_id", 4, "5.5", ', "dur": 1'),
            op % ("aten::backward_in_time", 6, "6.5", ', "dur": -1'),
            op % ("aten::coll", 3, "7.5", ', "args": {"Collective name": "x"}'),
        )
    ).encode()
    names = StringTable()

    rows = decoder(every_op=False)(chunk, names)

    assert [names.strings[one] for one in rows.name.tolist()] == [
        *("c10d::all_reduce", "aten::odd", "aten::a", "aten::backward_in_time"),
        "aten::coll",
    ]
    assert rows.ops.external.tolist() == [7, 8, 9, 10]
    assert rows.ops.start_ns.tolist() == [1500, 2500, 3500, 4500]
    assert rows.ops.tid.tolist() == [5, 5, 5, 5]
    assert rows.left_pids == [3, 4]
    assert read_alike([chunk])


def test_operators_of_more_processes_than_are_noted() -> None:
    """Those of the others have rows, so that no process is lost."""
    op = (
        '{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": %d, "ts": 1, "dur": 1}'
    )
    chunk = ",".join(op % pid for pid in range(40)).encode()

    rows = decoder(every_op=False)(chunk, StringTable())

    assert rows.left_pids == list(range(16))
    assert rows.pid.tolist() == list(range(16, 40))
    assert read_alike([chunk])
