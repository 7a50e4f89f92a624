"""Records a live FSDP2 run. Importing this imports no torch; recording does.

[Note: The recorder must not hurt the run] No hook synchronises with the device,
sends anything between ranks or changes a number of the training. An error of
ours is caught at the border, said once, and ends the recording.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from fsdpdoctor.errors import MissingDependencyError
from fsdpdoctor.rank_end import HANG_AFTER_S
from fsdpdoctor.recorder import border

if TYPE_CHECKING:
    from fsdpdoctor.recorder.recording_config import RecordingConfig
    from fsdpdoctor.recorder.session import Session

_current: Session | None = None


def current() -> Session | None:
    """The recording of this process, if there is one."""
    return _current


def require_torch() -> None:
    """Raise MissingDependencyError where there is no torch to record."""
    if importlib.util.find_spec("torch") is None:
        raise MissingDependencyError(
            "recording needs torch, which is not installed here: install the build "
            "for your hardware (https://pytorch.org/get-started), or: "
            "pip install torch"
        )


def start(plan: RecordingConfig) -> Session | None:
    """Begin to record this process. One recording at a time.

    None where it cannot be recorded, which is said: it trains all the same.
    """
    global _current
    if _current is not None:
        unrecorded("it is recorded already")
        return None
    session = None
    try:
        from fsdpdoctor.recorder.rank_header import place
        from fsdpdoctor.recorder.session import Session
        from fsdpdoctor.run_writer import remove_rank

        try:
            session = Session(plan)
        except FileExistsError:  # of another process, or no folder
            raise
        except Exception:
            remove_rank(plan.folder, place()[0])
            raise
    except Exception as error:
        unrecorded(border.describe(error))
        return None
    session.attach()
    _current = session
    return session


def unrecorded(why: str) -> None:
    """Say that this process trains without a record."""
    rank = os.environ.get("RANK")
    who = "this process" if rank is None else f"rank {rank}"
    border.say(f"fsdpdoctor: {who} is not recorded, training goes on: {why}")


def stop(ended: str = "done", error: BaseException | None = None) -> None:
    """End the recording of this process, if there is one.

    `error` is what ended the script.
    """
    global _current
    session, _current = _current, None
    if session is None:
        return
    try:
        session.detach(ended, error)
    except Exception as failed:
        border.say(f"fsdpdoctor: the record ends early: {border.describe(failed)}")


@contextmanager
def record(
    out: str | Path | None = None,
    *,
    steps: str | None = None,
    every: int | None = None,
    max_size: str | None = None,
    autotune: bool | float = False,
) -> Iterator[Path]:
    """Record what runs inside; the value is the run's folder.

    Every rank calls it, after `init_process_group`. `steps`, `every` and `max_size` are
    those of `fsdpdoctor run`, and so is `autotune`, which may be a number of minutes.
    Inside a job that is recorded already it changes nothing.
    """
    require_torch()
    # With the script's own import of it the recording of its process may begin.
    importlib.import_module("torch")
    if _current is not None:
        yield _current.folder
        return
    from fsdpdoctor import redact
    from fsdpdoctor.recorder.recording_config import RecordingConfig
    from fsdpdoctor.recorder.storage import run_folder
    from fsdpdoctor.recorder.storage.sampling import sampling_of
    from fsdpdoctor.recorder.storage.size_limit import max_bytes_of
    from fsdpdoctor.storage.runs_place import RUNS

    sampling, max_bytes = sampling_of(steps, every), max_bytes_of(max_size)
    argv = [*map(str, getattr(sys, "argv", None) or ())]  # the script's to change
    script = argv[0] if argv else ""
    folder = Path(out) if out else None
    try:
        place = run_folder.agree_on_folder(folder, script or "python")
    except (OSError, ValueError) as error:  # or no path at all, with a NUL in it
        unrecorded(border.describe(error))
        yield folder or RUNS
        return
    config = RecordingConfig(
        folder=place.folder,
        run_id=place.run_id,
        sampling=sampling,
        command=redact.command(argv),
        max_bytes=max_bytes,
        hang_after_s=HANG_AFTER_S,
    )
    try:
        with _recording(config, autotune):
            yield place.folder
    except GeneratorExit:
        stop()  # a generator that records is left, as by a loop's `break`
        raise
    except BaseException as error:
        stop(run_folder.how_it_ended(error), error)
        raise
    stop()


def _recording(
    config: RecordingConfig, autotune: bool | float
) -> AbstractContextManager[None]:
    """Begin to record, and to tune where that was asked for."""
    if autotune is False:
        start(config)
        return nullcontext()
    from fsdpdoctor.recorder.autotune.start import autotuning, tuned

    config = tuned(config)
    minutes = 0.0 if autotune is True else float(autotune)
    return nullcontext() if start(config) is None else autotuning(config, minutes)


def step() -> None:
    """End the optimizer step here. From the first call on, only these calls do.

    Steps are found from optimizers without it.
    """
    if _current is not None:
        _current.step()
