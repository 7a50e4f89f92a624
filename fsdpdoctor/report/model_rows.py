"""What a report says of each model, and of its passes without gradients."""

from __future__ import annotations

from typing import Literal

import msgspec


class ModelRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the process; each has units of its own, by names of its own."""

    name: str  # its class; "Net #2" where several are of one class
    role: Literal["trained", "without gradients", "not run"]
    units: int
    numel: int | None  # in its units


class NoGradRow(msgspec.Struct, frozen=True, kw_only=True):
    """Passes without gradients of one model, at one line."""

    model: int  # in `models`
    where: str | None  # "train.py:43"; None: the source does not say
    purpose: Literal["generation", "evaluation", "reference", "loop", "pass"]
    passes_per_step: float  # mean over ranks and judged steps
    steps_share: float  # of the judged steps, in how many they are
    all_gathers_per_step: float
    ns_per_step: int
    exposed_ns_per_step: int | None  # of it, for their all-gathers
