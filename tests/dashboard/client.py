"""A browser without a screen, and the runs it looks at."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")


from fsdpdoctor_dashboard.app import Serving, make_app
from fsdpdoctor_dashboard.data.run_registry import Library

if TYPE_CHECKING:
    pass


class Client:
    """A browser without a screen: keeps the cookie, follows nothing."""

    def __init__(self, library: Library, prefix: str = "/") -> None:
        app = make_app(library, Serving(token="secret", prefix=prefix))
        self.http = app.server.test_client()

    def get(self, path: str, **headers: str) -> tuple[int, bytes]:
        """Status and body."""
        with self.http.get(path, headers=headers) as answer:
            return answer.status_code, answer.data
