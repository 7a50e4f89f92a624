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
from fsdpdoctor.recorder.autotune import autotuner, step_lengths
from fsdpdoctor.run import open_run
from tests.recorder.autotune.hurried import hurry, put
from tests.recorder.autotune.kinds import KINDS, TRIED, trained

STEPS = 130


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


def main() -> None:
    """Train each kind twice."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    folder, rank = Path(sys.argv[1]), dist.get_rank()
    results = {}
    for kind in sys.argv[2].split(","):
        if kind == "failing":
            kind = "plain"
            if rank == 1:
                fail_in_a_trial()
        plain = trained(KINDS[kind], STEPS)
        run = folder / kind.replace(" ", "-")
        hurry(TRIED, "gathered")
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
