"""What a timeline shows first: the whole run, or all but a start that would fill it."""

from __future__ import annotations

import numpy as np

from fsdpdoctor_dashboard.data.series import SERIES, Row
from fsdpdoctor_dashboard.data.store import Store

SLOW_START = 3
"""A leading step of so many median steps is a start: it compiles, or imports."""
WORTH_LEAVING = 0.25
"""Part of the whole run that the start must take. Below it all steps have room."""
MARGIN = 0.01
"""Of what is shown, on both sides."""


def first_view(store: Store) -> dict[str, int] | None:
    """From the end of the start on; None where the whole run is the better view."""
    steps = [
        series
        for series in store.series(store.ranks[0] if store.ranks else -1)
        if SERIES[series.series].row == Row.STEP
    ]
    if not steps or len(steps[0].start) < 2:
        return None
    ends = steps[0].start + steps[0].length
    usual = float(np.median(steps[0].length))
    slow = steps[0].length > SLOW_START * usual
    leading = int(np.argmin(slow)) if not slow.all() else 0
    if not leading:
        return None
    begin, end = int(ends[leading - 1]), int(store.end)
    if begin < WORTH_LEAVING * end:
        return None
    margin = int(MARGIN * (end - begin))
    return {"t0": begin - margin, "t1": end + margin}
