"""The settings that are in force in this process, and what was there before.

[Note: Without changing a number] Order, number and time of collectives change; what is
computed from what does not, with three things seen to:

- A unit that stays gathered after forward is gathered no more when an optimizer steps,
  or it would compute with the parameters of before. FSDP2's own backward frees it; a
  pass without one, or a unit that was prefetched and not used, is seen to here.
- A pass without gradients runs under the script's own settings: it frees nothing
  afterwards that they would not free.
- What the script itself sets meanwhile, holds. It does so on all ranks, in the same
  pass, so that each sees it, and leaves it, in the same pass.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsdpdoctor.recorder.fsdp2.running_settings import (
    Change,
    Place,
    put,
    settle,
    unlike,
)

Key = tuple[int, str]


class ScriptChanged(Exception):
    """The script has set what was set here."""


def _key(place: Place) -> Key:
    return id(place.owner), place.name


class InForce:
    """What is set on top of the script's own settings."""

    def __init__(self) -> None:
        self._script: dict[Key, Change] = {}  # what was there before the first change
        self._set: dict[Key, Change] = {}
        self._given: Sequence[Change] = ()

    def use(self, changes: Sequence[Change]) -> None:
        """Exactly these changes to the script's settings, and no others. Raises
        ScriptChanged, and has then put back what the script has not set.
        """
        if changes is self._given:
            return
        if name := unlike([*self._set.values()]):
            self._leave_to_script()
            raise ScriptChanged(f"the script has set {name.strip('_')} itself")
        target = {_key(change.place): change for change in changes}
        for key, (place, _) in target.items():
            self._script.setdefault(key, Change(place, place.value))
        back = [self._script[key] for key in self._set if key not in target]
        # Before: where a signal handler raises, all is set nevertheless.
        self._set, self._given = target, changes
        put([*back, *target.values()])

    def _leave_to_script(self) -> None:
        put(
            [
                self._script[key]
                for key, (place, value) in self._set.items()
                if place.holds(value)
            ]
        )
        self._set, self._given = {}, ()

    def put_back(self) -> None:
        """The script's own settings, where they are not its own again already."""
        self._leave_to_script()

    def optimizer_begins(self) -> None:
        """Have nothing gathered that would be out of date after it."""
        if self._set:
            settle(
                [
                    change
                    for key, change in self._set.items()
                    if self._script[key].value != change.value
                ]
            )
