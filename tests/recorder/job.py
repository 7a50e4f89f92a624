"""Runs scenarios as one rank of a job: job.py FOLDER one|two|four|identical [live].

With `live` no hook is in C.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

from fsdpdoctor.recorder.tape.hooks import TapedHooks
from tests.recorder import scenarios
from tests.recorder.identical import compare_all

if sys.argv[3:] == ["live"]:
    TapedHooks.usable = property(lambda self: False)  # type: ignore[assignment]
torch.set_num_threads(1)
dist.init_process_group("gloo")
if sys.argv[2] == "identical":
    compare_all(sys.argv[1])
    dist.destroy_process_group()
    sys.exit()
scenarios.run_all(
    sys.argv[1],
    {
        "one": scenarios.ONE_RANK,
        "two": scenarios.TWO_RANKS,
        "four": scenarios.FOUR_RANKS,
    }[sys.argv[2]],
)
dist.destroy_process_group()
