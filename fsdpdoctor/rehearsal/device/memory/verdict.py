"""Whether the job fits into the device, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsdpdoctor.quantities import GIB

if TYPE_CHECKING:
    from fsdpdoctor.rehearsal.device.virtual_session import Rig


def in_words(rig: Rig) -> str:
    """One sentence, and where the memory is."""
    allocator, ledger = rig.device.allocator, rig.ledger
    room = rig.device.spec.allocatable_bytes / GIB
    held = ", ".join(
        f"{bucket} {size / GIB:.1f}"
        for bucket, size in ledger.at_peak.most_common()
        if size >= GIB / 20
    )
    at = ledger.peak_place or "before the first step"
    if ledger.failed is not None:
        return (
            f"out of memory in {ledger.failed_place}: needs "
            f"{(ledger.failed.allocated + ledger.failed.asked) / GIB:.1f} of "
            f"{room:.1f} GiB, of which GiB: {held}"
        )
    return (
        f"fits: {allocator.peak_reserved / GIB:.1f} of {room:.1f} GiB reserved, at "
        f"most {ledger.peak / GIB:.1f} GiB allocated, in {at}; of which GiB: {held}"
    )
