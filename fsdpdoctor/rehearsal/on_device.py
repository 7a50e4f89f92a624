"""A rehearsal whose device is a model, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fsdpdoctor.recorder import border
from fsdpdoctor.rehearsal.device.memory import verdict
from fsdpdoctor.rehearsal.device.spec import DeviceSpec
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
from fsdpdoctor.rehearsal.device.virtual_session import on_device
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing


def device_note(spec: DeviceSpec) -> str:
    """What every reader of the run must know of its times."""
    return (
        f"time is modelled: no kernel ran; {spec.name}, {spec.memory_gib:g} GiB, "
        f"{spec.bf16_tflops:g} TFLOP/s bf16, {spec.bandwidth_gb_s:g} GB/s. Expect "
        "steps within some 10 % of such a device's, more where kernels are small or "
        "of the script's own"
    )


@contextmanager
def rehearsing_on(
    spec: DeviceSpec, rehearsal: Rehearsal, *, host_scale: float = 1.0
) -> Iterator[None]:
    """While it is open, this process is rank 0 of the job, on such devices."""
    device = VirtualDevice(spec, host_scale=host_scale)
    with (
        rehearsing(rehearsal, virtual=device.collective),
        on_device(device, rehearsal.node_size) as rig,
    ):
        try:
            yield
        finally:
            border.say(f"fsdpdoctor: {verdict.in_words(device, rig.ledger)}")
