"""Who is looking, and until when there is somebody to answer.

A page asks every few seconds whether it is still answered. So a view beside a training
can stay after the training's end for as long as a page shows it, and end by itself
when nobody looks, or when a stated time has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from flask import Blueprint, jsonify
from flask.typing import ResponseReturnValue

FAREWELL_S = 6.0
"""After the end of a training: a page asks every two seconds whether there is more,
and so sees the last steps."""

LEFT_S = 75.0
"""A page that has not asked for so long was left: browsers let the timers of a tab in
the background go off once a minute."""

OTHERS_S = 10.0
"""A page that says that it is left may not be the only one: others have so long to ask.
"""

Clock = Callable[[], float]


class Presence:
    """When a page last asked, and since when the training has ended."""

    def __init__(self, longest_s: float = 0.0, clock: Clock = time.monotonic) -> None:
        """`longest_s` after the training's end nobody is answered any more."""
        self._longest_s = longest_s
        self._clock = clock
        self._asked: float | None = None
        self._ended: float | None = None

    def ask(self) -> None:
        """A page is open."""
        self._asked = self._clock()

    def leave(self) -> None:
        """A page was left."""
        self._asked = self._clock() - LEFT_S + OTHERS_S

    def end(self) -> None:
        """The training has ended: from now on only who looks is waited for."""
        self._ended = self._clock()

    @property
    def left_s(self) -> float | None:
        """Until when there is an answer at most; None: there is no end to it."""
        if self._ended is None:
            return None
        return max(0.0, self._ended + self._longest_s - self._clock())

    @property
    def stays(self) -> bool:
        """Whether there is still somebody to answer for."""
        if self._ended is None:
            return True
        now = self._clock()
        if now - self._ended < FAREWELL_S:
            return True
        if now - self._ended >= self._longest_s or self._asked is None:
            return False
        return now - self._asked < LEFT_S


def presence_routes(presence: Presence) -> Blueprint:
    """The routes that a page asks: that it is there, and that it is left."""
    routes = Blueprint("presence", __name__)

    @routes.get("/alive")
    def alive() -> ResponseReturnValue:
        presence.ask()
        return jsonify({"left_s": presence.left_s})

    @routes.post("/left")
    def left() -> ResponseReturnValue:
        presence.leave()
        return "", 204

    return routes
