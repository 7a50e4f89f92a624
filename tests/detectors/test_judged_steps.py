"""Tables of judged steps: rows by step."""

from __future__ import annotations

import numpy as np

from fsdpdoctor.detectors.judged_steps import rows_by_step


def test_rows_by_step_are_ascending_in_each() -> None:
    """Of an empty table there are none."""
    found = rows_by_step(np.array([5, 3, 5, 9, 3]))

    assert {step: rows.tolist() for step, rows in found.items()} == {
        3: [1, 4],
        5: [0, 2],
        9: [3],
    }
    assert rows_by_step(np.empty(0, dtype=np.int64)) == {}
