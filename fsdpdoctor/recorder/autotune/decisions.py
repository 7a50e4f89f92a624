"""A decision: which settings are in force in which passes, the same on every rank.

Passes are a root's forwards with gradients, counted from the first one. Each issues
collectives that all ranks take part in, so that ranks count alike, whatever else they
do between two of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

Blocks = tuple[tuple[int, bool], ...]
"""How many passes each, and whether the settings tried are in force in them."""


class What(StrEnum):
    """What is decided."""

    TRY = "try"  # these settings in some blocks; then those that are kept
    KEEP = "keep"  # from here on
    BACK = "back"  # to what is kept, before the blocks are over
    END = "end"  # nothing more is proposed; needs nobody's vote


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision. `settings` is what a plan file has under `apply`."""

    number: int
    at_pass: int
    what: What
    settings: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""  # the same for people
    blocks: Blocks = ()
    bytes: int = 0  # of memory that it takes more
    model: str = ""  # of which it is: ranks may hold different ones

    @property
    def end_pass(self) -> int:
        """The first pass after its blocks."""
        return self.at_pass + sum(passes for passes, _ in self.blocks)

    def tries(self, at_pass: int) -> bool:
        """Whether its settings are in force in a pass."""
        if self.what is not What.TRY:
            return self.what is What.KEEP and at_pass >= self.at_pass
        start = self.at_pass
        for passes, tried in self.blocks:
            if start <= at_pass < start + passes:
                return tried
            start += passes
        return False

    def to_text(self) -> str:
        """As it lies in the store."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> Decision:
        """From the store. Raises ValueError."""
        try:
            said = json.loads(text)
            said["what"] = What(said["what"])
            said["blocks"] = tuple((int(n), bool(on)) for n, on in said["blocks"])
            return cls(**said)
        except (KeyError, TypeError) as error:
            raise ValueError(f"it is no decision: {error}") from None
