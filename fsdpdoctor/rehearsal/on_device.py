"""A rehearsal whose device is a model, too."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from fsdpdoctor import recorder
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.recorder import border
from fsdpdoctor.rehearsal.device.cannot_rehearse import assumptions, explain
from fsdpdoctor.rehearsal.device.compiled import COMPILED
from fsdpdoctor.rehearsal.device.memory import verdict
from fsdpdoctor.rehearsal.device.spec import DeviceSpec
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
from fsdpdoctor.rehearsal.device.virtual_session import Rig, on_device
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing


def device_note(spec: DeviceSpec) -> str:
    """What every reader of the run must know of its times."""
    return (
        f"time is modelled: no kernel ran; {spec.name}, {spec.memory_gib:g} GiB, "
        f"{spec.bf16_tflops:g} TFLOP/s bf16, {spec.bandwidth_gb_s:g} GB/s. Expect "
        "steps within some 10 % of such a device's, more where kernels are small or "
        "of the script's own"
    )


class RehearsalOnDevice:
    """While it is open, this process is rank 0 of the job, on such devices."""

    def __init__(
        self,
        spec: DeviceSpec,
        rehearsal: Rehearsal,
        *,
        host_scale: float = 1.0,
        verdict_to: Path | None = None,
    ) -> None:
        self._verdict_to = verdict_to
        self._device = VirtualDevice(spec, host_scale=host_scale)
        self._rehearsal = rehearsal
        self._open = ExitStack()
        self._rig: Rig | None = None
        self._refused = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What its reader must know."""
        return (device_note(self._device.spec),)

    def __enter__(self) -> None:
        with ExitStack() as opened:
            job, device = self._rehearsal, self._device
            opened.enter_context(rehearsing(job, virtual=device.collective))
            self._rig = opened.enter_context(on_device(device, job.node_size))
            self._open = opened.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._rig is not None and not self._refused:
            border.say(
                f"fsdpdoctor: {verdict.in_words(self._device, self._rig.ledger)}"
            )
            if self._verdict_to is not None:
                found = verdict.as_json(self._device, self._rig.ledger)
                border.last_words(lambda: _write(self._verdict_to, found))
        self._open.__exit__(kind, error, trace)

    def ended(self, error: BaseException | None) -> FsdpDoctorError | None:
        """The script has: what is put into the record of what was made up. What is said
        in the place of an error that is the rehearsal's and not the script's.
        """
        # The process ends no earlier than its device: a script need not wait for it.
        if self._rig is not None:
            self._device.synchronize()
        found = None if error is None else explain(error, self._device)
        self._refused = error is not None and not _as_planned(error)
        if found is None:
            session = recorder.current()
            used = self._rig is not None and self._rig.compiled.used
            compiled = [COMPILED] if used else []
            for words in (*compiled, *assumptions(self._device.tally)):
                border.say(f"fsdpdoctor: {words}")
                if session is not None:
                    session.warn(words)
        return found


def _write(path: Path | None, text: str) -> None:
    assert path is not None
    path.write_text(text, encoding="utf-8")


def _as_planned(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and not error.code
