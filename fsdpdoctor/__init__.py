"""fsdpdoctor: what a PyTorch FSDP2 run waits for, on which unit and rank, and why.

Nothing here imports torch before `record` or `step` is called.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from fsdpdoctor.version import __version__ as __version__


def record(
    out: str | Path | None = None,
    *,
    steps: str | None = None,
    every: int | None = None,
) -> AbstractContextManager[Path]:
    """Record what runs inside; the value is the run's folder.

    Every rank calls it, after `init_process_group`. `steps` and `every` are those
    of `fsdpdoctor run`. Inside a job that is recorded already it changes nothing.
    """
    from fsdpdoctor import recorder

    return recorder.record(out, steps=steps, every=every)


def step() -> None:
    """End the optimizer step here. From the first call on, only these calls do.

    Steps are found from optimizers without it.
    """
    from fsdpdoctor import recorder

    recorder.step()
