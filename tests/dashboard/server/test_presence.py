"""Until when a view beside a training answers."""

from __future__ import annotations

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from fsdpdoctor_dashboard.server.presence import (
    FAREWELL_S,
    LEFT_S,
    OTHERS_S,
    Presence,
)
from tests.dashboard.client import Client


class Watch:
    """A clock that is set."""

    now = 1000.0

    def __call__(self) -> float:
        """What it shows."""
        return self.now


def test_while_the_training_goes_on_nobody_needs_to_look() -> None:
    """There is no end to it then, and none is told."""
    watch = Watch()
    presence = Presence(60, watch)
    watch.now += 10_000

    assert presence.stays
    assert presence.left_s is None


def test_nobody_who_looks_is_waited_for_a_moment_only() -> None:
    """As long as a page needs to see the last steps."""
    watch = Watch()
    presence = Presence(3600, watch)
    presence.end()
    watch.now += FAREWELL_S - 0.1
    assert presence.stays
    watch.now += 0.2
    assert not presence.stays


def test_a_page_that_asks_is_answered_until_the_stated_time() -> None:
    """It is told how long that is, and then it is the end."""
    watch = Watch()
    presence = Presence(600, watch)
    presence.end()
    for _ in range(59):
        watch.now += 10
        presence.ask()
        assert presence.stays
    assert presence.left_s == 10
    watch.now += 10
    presence.ask()
    assert not presence.stays
    assert presence.left_s == 0


def test_a_page_that_was_left_is_not_waited_for() -> None:
    """Said by itself, soon; not said, after the longest that a browser may be silent.
    Another page that asks in between goes on being answered.
    """
    watch = Watch()
    presence = Presence(3600, watch)
    presence.ask()
    presence.end()
    watch.now += LEFT_S - 1
    assert presence.stays
    presence.ask()
    presence.leave()
    watch.now += OTHERS_S - 1
    assert presence.stays
    presence.ask()
    watch.now += LEFT_S - 1
    assert presence.stays
    presence.leave()
    watch.now += OTHERS_S
    assert not presence.stays


def test_an_open_page_asks_and_leaves_by_its_routes(admitted: Client) -> None:
    """What is told is JSON; a run that is only viewed has no end."""
    assert admitted.get("/alive") == (200, b'{"left_s":null}\n')
    with admitted.http.post("/left") as answer:
        assert answer.status_code == 204
