"""Scripts of the kinds that frameworks and their users write, and what each does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A script, and what one step of it holds, by hand."""

    script: str
    way: str
    ranks: int = 2
    steps: int = 8
    micro_batches: float = 1.0  # with a backward, in each step
    turns: int = 1  # of optimizers of torch's, in each step

    def __str__(self) -> str:
        return f"{self.script}-{self.way}"


def _all(script: str, *ways: str) -> list[Kind]:
    return [Kind(script=script, way=way) for way in ways]


KINDS = [
    *_all("loops", "raw", "kept", "bf16", "offload", "prefetch", "early", "clipped"),
    *_all("loops", "epochs", "evaluated", "evaluated-seldom", "saved", "exported"),
    *_all("loops", "averaged", "autocast", "closure"),
    Kind(script="loops", way="parts", ranks=4),
    Kind(script="loops", way="accumulate", micro_batches=2),
    Kind(script="loops", way="accumulate-last", micro_batches=3),
    Kind(script="loops", way="accumulate-keep", micro_batches=4),
    Kind(script="loops", way="in-backward"),
    Kind(script="loops", way="by-hand", turns=0),
    Kind(script="loops", way="skipping", steps=7, micro_batches=8 / 7),
    *_all("models", "checkpointed", "reentrant", "wrapped", "tied", "recurrent"),
    *_all("models", "lora", "experts", "towers", "frozen-tower", "pair", "grouped"),
    *_all("models", "fine", "whole", "compiled"),
    Kind(script="models", way="hybrid", ranks=4),
    *_all("several", "reference", "generated", "preferred"),
    Kind(script="several", way="two-optimizers"),
    Kind(script="several", way="adversaries", turns=2, micro_batches=2),
    Kind(script="several", way="actor-and-critic"),
    Kind(script="several", way="sharpened", micro_batches=2),
    Kind(script="optimizers", way="in-two-phases", micro_batches=2),
    Kind(script="optimizers", way="with-closure", micro_batches=2),
    Kind(script="optimizers", way="slowed"),
    Kind(script="optimizers", way="searching", micro_batches=3),
    Kind(script="optimizers", way="lbfgs", micro_batches=2),
    Kind(script="optimizers", way="scaled"),
    Kind(script="optimizers", way="attacked", micro_batches=4),
    Kind(script="optimizers", way="clipped-each", micro_batches=4),
    Kind(script="optimizers", way="twice"),
    Kind(script="optimizers", way="only-scheduled", turns=0),
    Kind(script="several", way="gpipe", ranks=4, micro_batches=4),
    Kind(script="several", way="1f1b", ranks=4, micro_batches=4),
    Kind(script="several", way="tensor-parallel", ranks=4),
]
