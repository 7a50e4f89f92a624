"""What kind of device a trace is of, by what its head says."""

from __future__ import annotations

import re
from collections.abc import Mapping

_BACKEND = re.compile(r"([a-z0-9]+):[a-z0-9]*ccl", re.I)
"""A device and its library in `backend`: "cuda:nccl", "npu:hccl"."""

_ROCM_KEYS = ("hip_runtime_version", "hip_driver_version", "roctracer_version")
_AMD = re.compile(r"\bAMD\b|\bInstinct\b|\bRadeon\b|\bMI\d{3}", re.I)


def device_kind(metadata: Mapping[str, object]) -> str:
    """What it is: "cuda", "rocm", another's word, or "cpu" where no device is named."""
    devices = metadata.get("deviceProperties")
    listed = devices if isinstance(devices, list) else []
    names = [str(one.get("name")) for one in listed if isinstance(one, dict)]
    if any(key in metadata for key in _ROCM_KEYS) or any(map(_AMD.search, names)):
        return "rocm"
    info = metadata.get("distributedInfo")
    backend = info.get("backend") if isinstance(info, dict) else None
    for device in _BACKEND.findall(backend if isinstance(backend, str) else ""):
        if device.lower() != "cpu":
            return str(device).lower()
    return "cuda" if listed else "cpu"
