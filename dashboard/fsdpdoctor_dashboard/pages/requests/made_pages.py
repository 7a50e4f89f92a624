"""Pages that were made are kept: what they show does not change until the run does."""

from __future__ import annotations

import contextlib
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
        self._making: dict[Key, threading.Lock] = {}
        self._lock = threading.Lock()

    def page(self, module: str, key: Key, context: Context) -> Component:
        """The page that `key` names; who asks while it is made waits for that."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            found = self._known(key)
            if found is not None:
                return found
            try:
                made = _make(module, context)
                self._keep(key, made)
            finally:
                with self._lock:
                    self._making.pop(key, None)
            return made

    def _known(self, key: Key) -> Component | None:
        with self._lock:
            if key in self._made:
                self._made.move_to_end(key)
                self._making.pop(key, None)
            return self._made.get(key)

    def _keep(self, key: Key, made: Component) -> None:
        with self._lock:
            self._made[key] = made
            while len(self._made) > KEPT:
                self._made.popitem(last=False)

    def soon(
        self, module: str, key: Key, context: Context, seconds: float
    ) -> Component | None:
        """The page, where it is made within some time; else it is made all the same,
        for who asks for it next.
        """
        with self._lock:
            if (found := self._made.get(key)) is not None:
                return found
        made: list[Component] = []

        def make() -> None:
            # What goes wrong is said to who asks for the page by itself.
            with contextlib.suppress(Exception):
                made.append(self.page(module, key, context))

        maker = threading.Thread(target=make, name="first-page", daemon=True)
        maker.start()
        maker.join(seconds)
        return made[0] if made else None


def _make(module: str, context: Context) -> Component:
    found = importlib.import_module(f"fsdpdoctor_dashboard.pages.{module}")
    page: Component = found.page(context)
    return page
