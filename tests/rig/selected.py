"""What the tests of a run were selected for: jobs are started for those alone."""

from __future__ import annotations

from typing import Any

import pytest


def selected(request: pytest.FixtureRequest, name: str) -> list[Any]:
    """The values that a parameter has in the selected tests."""
    return [
        item.callspec.params[name]
        for item in request.session.items
        if isinstance(item, pytest.Function) and name in item.fixturenames
    ]
