"""A training in odd surroundings: see `oddities`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from tests.faults.between_steps import WITHIN
from tests.faults.caught import CAUGHT
from tests.faults.jobs import SCRIPTS, Ended, last_whole, note, python, recorder
from tests.faults.oddities import BEFORE
from tests.faults.own_ways import OWN_WAYS
from tests.faults.strictness import STRICT

pytestmark = [
    pytest.mark.faults,
    pytest.mark.ranks,
    pytest.mark.usefixtures("warm"),
]

LAST = 13
CLOCKS = ("clock-forward", "clock-back")
OTHERWISE: dict[str, tuple[str, int]] = {
    "small-files": ("detached: OSError", 3),
    "exits-in-a-hook": ("exit: 4", 7),
    "closes-descriptors": ("detached: OSError", 4),
    "calls-mocked": ("running", -1),
    "nobody": ("detached", -1),
    "audited": ("detached: PermissionError", -1),
    "audited-files": ("running", -1),
    "hooks-removed": ("done", 4),
}
"""How the record ends, and its last whole step, where that is not as planned."""


NAMES = [*BEFORE, *OWN_WAYS, *STRICT, *WITHIN, *CAUGHT, *CLOCKS]


@pytest.mark.parametrize("name", NAMES)
def test_trains_as_without_us(name: str, tmp_path: Path) -> None:
    """To the bit, with the same output and status; the record is whole."""
    run = tmp_path / "run"

    def trained(folder: str, *before: str) -> Ended:
        losses = tmp_path / folder
        script = str(SCRIPTS / "alone.py")
        done = python(*before, script, name, str(losses), cwd=tmp_path)
        return Ended(
            status=done.status,
            stdout=done.stdout,
            losses=(losses.read_text(),),
            stderr=done.stderr,
        )

    plain, ours = trained("plain"), trained("recorded", *recorder(run))
    (rank,) = open_run(run).load()
    note(f"alone: {name}", plain, ours, rank.header.ended[:40], last_whole(rank))
    ended, least = OTHERWISE.get(name, ("done", LAST))

    assert ours.trained == plain.trained, ours.stderr[-3000:]
    assert rank.header.ended.startswith(ended)
    assert last_whole(rank) >= least
    assert ours.stderr.count("Traceback") == plain.stderr.count("Traceback")
