"""One rank of a job that trains each kind as it is, and tuned: tuned_job.py FOLDER
KINDS. What came of both is written for each rank.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[3]))

import fsdpdoctor
from fsdpdoctor.recorder.autotune import (
    autotuner,
    conductor,
    start,
    step_lengths,
    tuning,
)
from fsdpdoctor.recorder.autotune.paired_test import Gain, Judgement
from fsdpdoctor.recorder.autotune.ranking import RANKED, Candidate, Ranking
from fsdpdoctor.run import open_run
from tests.recorder.autotune.kinds import KINDS, trained

STEPS = 130
BLOCKS = [f"layers.{at}" for at in range(4)]


def unit(**said: Any) -> dict[str, Any]:
    """What a plan says of one unit."""
    return said


LISTS = {
    name: unit(forward_prefetch=BLOCKS[at + 1 : at + 3], backward_prefetch=[])
    for at, name in enumerate(BLOCKS)
}
GATHERED = {name: unit(reshard_after_forward=False) for name in BLOCKS}
BOTH = {name: LISTS[name] | GATHERED[name] for name in BLOCKS}
TRIED: dict[str, dict[str, Any]] = {
    "lists": {"units": LISTS, "unshard_async_op": True},
    "gathered": {"units": GATHERED, "max_input_buffers": 2},
    "both": {"units": BOTH, "unshard_async_op": True},
}
"""The second is kept; so that the third is tried on top of what is kept."""


def ranking() -> Ranking:
    """All of them promise something."""
    found = [
        Candidate(
            summary=name, plan={}, apply=apply, code="", step_ns=100 - 10 * at, bytes=0
        )
        for at, (name, apply) in enumerate(TRIED.items())
    ]
    return Ranking(measured_ns=1000, candidates=tuple(found))


class NoSearch:
    """In place of the process that ranks: the ranking is there before it is asked."""

    def __init__(self, module: str, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RANKED).write_text(json.dumps(asdict(ranking())))

    def close(self) -> None:
        """Nothing has begun."""


def by_turns(gains: Any, looks: int) -> tuple[Judgement, Gain]:
    """The second candidate is kept, whatever was measured."""
    by_turns.count += 1  # type: ignore[attr-defined]
    kept = by_turns.count % 3 == 2  # type: ignore[attr-defined]
    gain = Gain(share=0.5, low=0.5, high=0.5)
    return Judgement.KEEP if kept else Judgement.DROP, gain


def hurry() -> None:
    """Decisions follow each other within few steps."""
    by_turns.count = 0  # type: ignore[attr-defined]
    put(
        (conductor, "LEAD_S", 0.05),
        (autotuner, "LOOK_EVERY_S", 0.01),
        (tuning, "ROUND", tuning.ROUND[:4]),
        (tuning, "QUADS", 1),
        (tuning, "FAR_SLOWER", 1e9),
        (tuning, "judge", by_turns),
        (start, "Beside", NoSearch),
    )


def fail_in_a_trial() -> None:
    """Rank 1 can measure no step from the sixth of the first round on."""
    begins = step_lengths.StepLengths.begins

    def fails(lengths: Any, at_pass: int) -> None:
        if fails.tried > 5:  # type: ignore[attr-defined]
            raise MemoryError("injected")
        fails.tried += any(  # type: ignore[attr-defined]
            one.tries(at_pass) for one in decisions_of_this_rank
        )
        begins(lengths, at_pass)

    decisions_of_this_rank: list[Any] = []
    begin = autotuner.Autotuner._begin

    def noted(tuner: Any, decision: Any) -> None:
        decisions_of_this_rank.append(decision)
        begin(tuner, decision)

    fails.tried = 0  # type: ignore[attr-defined]
    put(
        (step_lengths.StepLengths, "begins", fails),
        (autotuner.Autotuner, "_begin", noted),
    )


def put(*patches: tuple[Any, str, Any]) -> None:
    """Set them, for good: the process is the job's."""
    for owner, name, value in patches:
        setattr(owner, name, value)


def main() -> None:
    """Train each kind twice."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    hurry()
    folder, rank = Path(sys.argv[1]), dist.get_rank()
    results = {}
    for kind in sys.argv[2].split(","):
        if kind == "failing":
            kind = "plain"
            if rank == 1:
                fail_in_a_trial()
        plain = trained(KINDS[kind], STEPS)
        run = folder / kind.replace(" ", "-")
        with fsdpdoctor.record(run, autotune=True):
            tuned = trained(KINDS[kind], STEPS)
        dist.barrier()
        header = open_run(run).sources[rank].load().header
        results[kind] = {
            "other": [
                at
                for at, two in enumerate(zip(plain, tuned, strict=True))
                if two[0] != two[1]
            ][:3],
            "settings": [asdict(spec) for spec in header.settings],
            "warnings": header.warnings,
        }
    (folder / f"results.{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


main()
