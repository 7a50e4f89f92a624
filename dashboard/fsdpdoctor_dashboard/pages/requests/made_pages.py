"""Pages that were made are kept: what they show does not change until the run does."""

from __future__ import annotations

import importlib
import threading
from collections import OrderedDict

from dash.development.base_component import Component

from fsdpdoctor_dashboard.pages.components import Context

KEPT = 32
"""Pages at once: all of two runs in both themes."""

Key = tuple[str, ...]


class MadePages:
    """Each page once for each state of its runs, by the module that makes it."""

    def __init__(self) -> None:
        self._made: OrderedDict[Key, Component] = OrderedDict()
        self._lock = threading.Lock()

    def page(self, module: str, key: Key, context: Context) -> Component:
        """The page that `key` names; two who ask at once may make it twice."""
        with self._lock:
            found = self._made.get(key)
            if found is not None:
                self._made.move_to_end(key)
                return found
        made = _make(module, context)
        with self._lock:
            self._made[key] = made
            while len(self._made) > KEPT:
                self._made.popitem(last=False)
        return made


def _make(module: str, context: Context) -> Component:
    found = importlib.import_module(f"fsdpdoctor_dashboard.pages.{module}")
    page: Component = found.page(context)
    return page
