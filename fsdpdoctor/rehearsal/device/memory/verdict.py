"""Whether the job fits into the device, in words, and what would make it fit."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from fsdpdoctor.quantities import GIB
from fsdpdoctor.rehearsal.device.memory import memory_places as places
from fsdpdoctor.rehearsal.device.memory.storages import Ledger
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice

_WORTH_NAMING = GIB // 20


def as_json(device: VirtualDevice, ledger: Ledger) -> str:
    """The same for programs."""
    content = {
        "schema_version": 1,
        "fits": ledger.failed is None,
        "room_bytes": device.spec.allocatable_bytes,
        "needed_bytes": needed_bytes(ledger),
        "reserved_bytes": _reserved(device, ledger),
        "place": ledger.peak_place if ledger.failed is None else ledger.failed_place,
        "buckets": dict(ledger.at_peak),
        "retries": device.allocator.retries,
        "words": in_words(device, ledger),
    }
    return json.dumps(content, indent=2) + "\n"


def _reserved(device: VirtualDevice, ledger: Ledger) -> int:
    """At the most. Peaks are reset by whoever asks for them; what did not fit has made
    the modelled memory grow, which nobody resets.
    """
    peak = device.allocator.peak_reserved
    return peak if ledger.failed is None else max(peak, device.allocator.capacity)


def needed_bytes(ledger: Ledger) -> int:
    """Allocated at the most, or what it would have been."""
    if ledger.failed is None:
        return ledger.peak
    return max(ledger.peak, ledger.failed.allocated + ledger.failed.asked)


def in_words(device: VirtualDevice, ledger: Ledger) -> str:
    """One sentence, where the memory is, and what to change where it is too much."""
    room = device.spec.allocatable_bytes
    held = ", ".join(
        f"{bucket} {size / GIB:.1f}"
        for bucket, size in ledger.at_peak.most_common()
        if size >= _WORTH_NAMING
    )
    of_which = f"; of which GiB: {held}" if held else ""
    if ledger.failed is None:
        return (
            f"fits: {device.allocator.peak_reserved / GIB:.1f} of {room / GIB:.1f} GiB "
            f"reserved, at most {ledger.peak / GIB:.1f} GiB allocated, in "
            f"{ledger.peak_place or 'no step'}{of_which}{_tight(device)}"
        )
    needed = needed_bytes(ledger)
    if needed <= room:
        taken = f"{_reserved(device, ledger) / GIB:.1f} of {room / GIB:.1f} GiB"
        return (
            f"out of memory in {ledger.failed_place}: at most {needed / GIB:.1f} GiB "
            f"are allocated, but in pieces for which {taken} had to be reserved"
            f"{of_which}. To make it fit: PYTORCH_ALLOC_CONF=expandable_segments:True"
        )
    remedies = "; ".join(_remedies(ledger.at_peak, needed, room)) or (
        f"no kind of memory alone is as large as the {(needed - room) / GIB:.1f} GiB "
        "that are missing"
    )
    return (
        f"out of memory in {ledger.failed_place}: needs {needed / GIB:.1f} of "
        f"{room / GIB:.1f} GiB, most of it in {ledger.peak_place}{of_which}. "
        f"To make it fit: {remedies}"
    )


def _tight(device: VirtualDevice) -> str:
    """A job may fit and still stand still for its allocator."""
    times = device.allocator.retries
    if not times:
        return ""
    return (
        f". Tight: {times} times the allocator found no room and gave all that it had "
        "cached back to the device. A real job may do so in each pass, and be far "
        "slower than this rehearsal says"
    )


def _remedies(held: Mapping[str, int], needed: int, room: int) -> Iterator[str]:
    """What is largest first; each with whether it alone would do."""
    over = needed - room
    activations = held.get(places.ACTIVATIONS, 0)
    sharded = held.get(places.PARAMETERS, 0)
    gathered = held.get(places.GATHERED, 0)
    if activations > over:
        share = (activations - over) / activations
        yield (
            f"a micro-batch of {share:.0%} of this one's size, or activation "
            "checkpointing"
        )
    elif activations >= _WORTH_NAMING:
        yield "activation checkpointing or a smaller micro-batch, which is not enough"
    if sharded > over:
        times = sharded / (sharded - over)
        yield f"{times:.1f} times as many ranks to shard over, or CPU offload"
    if gathered > over:
        yield "smaller units, resharded after forward"
    if held.get(places.BACKWARD, 0) > over and activations <= over:
        yield "a loss in chunks, so that logits are not there all at once"
