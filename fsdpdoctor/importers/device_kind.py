"""What kind of device a trace is of, by what its head says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_BACKEND = re.compile(r"([a-z]\w*):[a-z]", re.I)
"""A device and its library in `backend`: "cuda:nccl", "npu:hccl", "neuron:xla"."""

_LIBRARIES = {"nccl": "cuda", "rccl": "rocm", "mccl": "mtia", "xccl": "xpu"}
"""Libraries that are of one kind of device alone: `backend` may name no device.
(`hccl` is Ascend's and Gaudi's.)"""

_ROCM_KEYS = ("hip_runtime_version", "hip_driver_version", "roctracer_version")
_AMD = re.compile(r"\bAMD\b|\bInstinct\b|\bRadeon\b|\bMI\d{3}", re.I)

_WORDS = frozenset(
    ("mtia", "hpu", "xpu", "npu", "ascend", "mlu", "musa", "neuron", "privateuse1")
)
"""What categories of a device's events begin with, where that names the device."""


def device_kind(metadata: Mapping[str, object]) -> str:
    """What it is: "cuda", "rocm", another's word, or "cpu" where no device is named."""
    devices = metadata.get("deviceProperties")
    listed = devices if isinstance(devices, list) else []
    names = [str(one.get("name")) for one in listed if isinstance(one, dict)]
    if any(key in metadata for key in _ROCM_KEYS) or any(map(_AMD.search, names)):
        return "rocm"
    info = metadata.get("distributedInfo")
    backend = info.get("backend") if isinstance(info, dict) else None
    said = backend.lower() if isinstance(backend, str) else ""
    for device in _BACKEND.findall(said):
        if device != "cpu":
            return str(device)
    return "cuda" if listed else _LIBRARIES.get(said, "cpu")


def device_of_categories(categories: Iterable[str]) -> str:
    """A device's word from the categories that its events are of: "hpu" of "hpu_op"."""
    words = {re.split(r"[^a-z0-9]", cat.lower())[0] for cat in categories}
    known = sorted(words & _WORDS)
    return known[0] if known else "accelerator"
