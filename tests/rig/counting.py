"""Counts what FSDP2 issues, apart from the recorder: at its own functions, by unit.

`install` goes before any recorder, whose wrappers then lie around these.
"""

from __future__ import annotations

import atexit
import json
from collections import Counter
from pathlib import Path
from typing import Any

FORWARD, BACKWARD = "forward", "backward"


def install(target: Path) -> None:
    """Count from here on, and write the counts at the end of this process.

    Each count is by how many turns optimizers have had before it: a list of `[turns,
    "all_gather", unit, phase, number]`. A turn ends with the next gather for a forward,
    however many optimizers stepped in it; a scaler that leaves a step out had it, too.
    """
    import torch
    from torch.distributed.fsdp._fully_shard import _fsdp_param_group as fsdp
    from torch.optim.optimizer import register_optimizer_step_post_hook

    counts: Counter[tuple[int, str, str, str]] = Counter()
    turns, stepped_since = [0], [False]
    acting: list[Any] = []

    def noted(name: str) -> None:
        original = getattr(fsdp.FSDPParamGroup, name)

        def method(group: Any, *args: Any, **kwargs: Any) -> Any:
            acting.append(group)
            try:
                return original(group, *args, **kwargs)
            finally:
                acting.pop()

        setattr(fsdp.FSDPParamGroup, name, method)

    def counted(name: str, what: str) -> None:
        original = getattr(fsdp, name)

        def function(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if what == "all_gather" and result is None:
                return result  # one rank: nothing was issued
            group = acting[-1]
            late = "BACKWARD" in group._training_state.name
            phase = BACKWARD if late else FORWARD
            if stepped_since[0] and what == "all_gather" and not late:
                turns[0] += 1
                stepped_since[0] = False
            counts[turns[0], what, group._module_fqn or "<root>", phase] += 1
            return result

        setattr(fsdp, name, function)

    for method in ("unshard", "post_backward"):
        noted(method)
    counted("foreach_all_gather", "all_gather")
    counted("foreach_reduce", "reduce")

    def stepped(*_: Any) -> None:
        stepped_since[0] = True

    register_optimizer_step_post_hook(stepped)
    scaled = torch.amp.GradScaler.step

    def step(*args: Any, **kwargs: Any) -> Any:
        result = scaled(*args, **kwargs)
        stepped()
        return result

    scaler: Any = torch.amp.GradScaler
    scaler.step = step

    def write() -> None:
        answer = {
            "turns": turns[0] + stepped_since[0],
            "counts": [[*key, n] for key, n in counts.items()],
        }
        target.write_text(json.dumps(answer), "utf-8")

    atexit.register(write)
