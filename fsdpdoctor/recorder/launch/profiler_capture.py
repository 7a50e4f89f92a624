"""torch.profiler beside our own record, for some steps of some ranks.

[Note: Beside the record] The profiler starts a step early and is written a step late,
so that neither is in a step that either view shows; those two steps are not recorded.
The early step also waits for every rank's profiler in its first collective, which is
the barrier that captures of several ranks need. What makes traces large and steps slow
(shapes, stacks, memory, modules) stays off.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.fsdp2.step_watch import StepWatch
from fsdpdoctor.recorder.launch.profiler_schedule import FOLDER, ProfilerSchedule
from fsdpdoctor.recorder.patching import Patches
from fsdpdoctor.schema import rank_stem


@contextmanager
def capturing(
    capture: ProfilerSchedule, folder: Path, rank: int
) -> Iterator[KinetoCapture]:
    """Capture this rank's steps, where it is among those asked for."""
    taking = KinetoCapture(capture, folder / FOLDER, rank)
    if rank in capture.ranks:
        taking.attach()
    try:
        yield taking
    finally:
        taking.detach()


class KinetoCapture:
    """Counts steps as the recorder does, and runs the profiler over some.

    It must not hurt the run: at its first error it says so, and is gone.
    """

    def __init__(self, capture: ProfilerSchedule, folder: Path, rank: int) -> None:
        self._capture = capture
        self._path = folder / f"{rank_stem(rank)}.kineto.json.gz"
        self._patches = Patches()
        self._watch = StepWatch(self._root_begins)
        self._profiler: Any = None
        self._annotation: Any = None
        self._step = 0
        self._forward_seen = False

    def attach(self) -> None:
        """See root forwards and optimizer steps. Raises UsageError without FSDP2."""
        self._watch.attach()

    def detach(self) -> None:
        """Write what there is, and see nothing more."""
        self._guarded(self._script_ended)
        self._patches.undo()
        self._watch.detach()

    def script_ended(self) -> None:
        """The script has come to its own end."""
        self._guarded(self._script_ended)

    def _root_begins(self, root: Any, stepped: bool) -> None:
        self._guarded(lambda: self._forward_begins(stepped))

    def _forward_begins(self, stepped: bool) -> None:
        if stepped:
            self._step += 1
        elif self._forward_seen:
            return  # another of the same step
        self._forward_seen = True
        steps = self._capture.steps
        if self._step == steps.start - 1:
            self._start()
        elif self._step in steps and self._profiler is not None:
            self._annotate()
        elif self._step == steps.stop:
            self._finish()

    def _start(self) -> None:
        if torch._C._autograd._profiler_enabled():
            raise FsdpDoctorError("the script's own profiler is running")
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        profiler = torch.profiler.profile(activities=activities)
        profiler.start()
        self._profiler = profiler
        # Two at once lose each other's events, without an error.
        owner = torch.autograd.profiler.profile
        original = owner._prepare_trace
        self._patches.put(owner, "_prepare_trace", self._giving_way(original))

    def _giving_way(self, original: Callable[[Any], None]) -> Callable[[Any], None]:
        def prepare_trace(profiler: Any) -> None:
            if self._profiler is not None:
                self._guarded(self._give_way)
            original(profiler)

        return prepare_trace

    def _give_way(self) -> None:
        self._profiler.stop()
        raise FsdpDoctorError("the script started a profiler of its own")

    def _script_ended(self) -> None:
        if self._annotation is None or self._watch.stepped:
            self._finish()
            return
        # Its annotation would end here, and half a step look like a whole one.
        self._profiler.stop()
        raise FsdpDoctorError(f"the script ended within step {self._step}")

    def _annotate(self) -> None:
        """Begin a step in the trace, under the number that our record has for it."""
        self._end_annotation()
        # What torch's own schedule calls a step: other tools find it, too.
        self._annotation = torch.profiler.record_function(f"ProfilerStep#{self._step}")
        self._annotation.__enter__()

    def _end_annotation(self) -> None:
        annotation, self._annotation = self._annotation, None
        if annotation is not None:
            annotation.__exit__(None, None, None)

    def _finish(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        self._end_annotation()
        profiler.stop()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._path.parent) as folder:
            plain = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(plain))
            packed = Path(folder) / self._path.name
            # Level 1: the others wait, and it is ten times smaller as it is.
            with plain.open("rb") as source, gzip.open(packed, "wb", 1) as target:
                shutil.copyfileobj(source, target, 1 << 20)
            packed.replace(self._path)

    def _guarded(self, act: Callable[[], None]) -> None:
        """See [Note: The border] in `patching`."""
        try:
            act()
        except Exception as error:
            self._profiler = self._annotation = None
            border.say(
                f"fsdpdoctor took no torch.profiler trace, training goes on: {error}"
            )
