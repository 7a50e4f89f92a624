"""What a device can do, read from a small file.

The files of known devices lie in `specs/`; `--on FILE` reads another. Peaks are the
data sheet's, for dense arithmetic; shares say how much of them long kernels keep up.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fsdpdoctor.errors import UsageError
from fsdpdoctor.quantities import GIB
from fsdpdoctor.storage.regular_file import is_file

SPECS = Path(__file__).parent / "specs"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec:
    """One accelerator."""

    name: str
    sources: tuple[str, ...]
    capability: tuple[int, int]
    sms: int
    memory_gib: float
    context_gib: float  # the driver's, the libraries' and NCCL's, beside the allocator
    bandwidth_gb_s: float
    bandwidth_share: float
    # By element type: dense TFLOP/s of the data sheet.
    bf16_tflops: float
    fp16_tflops: float
    tf32_tflops: float
    fp32_tflops: float
    fp8_tflops: float
    matmul_share: float  # of a long, large one
    tile: tuple[int, int]  # of the output, that one SM makes at a time
    attention_forward_tflops: float  # head dimension 128, long sequences
    attention_backward_tflops: float
    copy_gb_s: float  # between host and device, pinned
    pageable_gb_s: float
    launch_us: float  # from the host's call to the kernel's start, on an idle stream
    kernel_us: float  # the shortest kernel
    comm_sms: int  # taken from compute by collectives while they run
    price_per_hour: float | None = None

    @property
    def memory_bytes(self) -> int:
        return round(self.memory_gib * GIB)

    @property
    def allocatable_bytes(self) -> int:
        """What the allocator can have."""
        return round((self.memory_gib - self.context_gib) * GIB)


def known_devices() -> list[str]:
    """The devices that can be named."""
    return sorted(path.stem for path in SPECS.glob("*.toml"))


def load_spec(name: str) -> DeviceSpec:
    """A device by name, or by its file. Raises UsageError."""
    path = SPECS / f"{name.lower()}.toml"
    if not is_file(path):
        path = Path(name)
    if not is_file(path):
        raise UsageError(
            f"--on {name!r} is no device and no file; known devices: "
            f"{', '.join(known_devices())}"
        )
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"--on {name}: {path} is no TOML: {error}") from None
    base = values.pop("like", None)
    if base is not None:
        values = _values_of(str(base)) | values
    return _spec(values, path)


def _values_of(name: str) -> dict[str, Any]:
    path = SPECS / f"{name}.toml"
    if not path.is_file():
        raise UsageError(
            f"like = {name!r} is no known device: {', '.join(known_devices())}"
        )
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    base = values.pop("like", None)
    return values if base is None else _values_of(str(base)) | values


def _spec(values: dict[str, Any], path: Path) -> DeviceSpec:
    known = {field.name: field for field in fields(DeviceSpec)}
    if unknown := sorted(set(values) - set(known)):
        raise UsageError(f"{path}: unknown {', '.join(unknown)}")
    optional = {"price_per_hour"}
    if missing := sorted(set(known) - set(values) - optional):
        raise UsageError(f"{path}: {', '.join(missing)} missing")
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
        elif known[name].type in ("float", "int") and not (
            isinstance(value, int | float) and value >= 0
        ):
            raise UsageError(f"{path}: {name} is {value!r}; expected a number")
    return DeviceSpec(**values)
