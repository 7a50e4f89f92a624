"""Why a script cannot be rehearsed on a modelled device: one line, and what to do.

A rehearsal has shapes and no numbers, and no GPU. What needs either ends in an error
of torch's, of a library's or of the script's own. Each rule below knows one kind of
them by what was seen; an error that none knows is the script's, as on a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from fsdpdoctor.errors import RehearsalError
from fsdpdoctor.recorder.host.host_hooks import short_path
from fsdpdoctor.recorder.host.source_paths import INSTALLED, PYTHON, TORCH, is_ours
from fsdpdoctor.rehearsal.device.virtual_device import Tally, VirtualDevice

MOST_READS = 20_000
"""Of one line, while nothing is communicated: no script looks at as many numbers of the
device on purpose, and a loop that waits for one of them would never end.
"""

_OWN_KERNELS = (
    "flash_attn", "triton", "xformers", "apex", "transformer_engine", "bitsandbytes",
    "cupy", "mamba_ssm", "causal_conv1d", "deep_ep", "deep_gemm",
    "flash_attn_interface", "flashinfer", "grouped_gemm", "megablocks", "natten",
    "pynvml", "fbgemm_gpu", "liger_kernel", "torchao", "quack", "kernels",
)  # fmt: skip
"""Packages that need a GPU: most hold kernels of their own."""

_NO_GPU = re.compile(
    r"dummy base class|not compiled with CUDA|no NVIDIA|no CUDA|CUDA error|CUDA driver"
    r"|CUDA_HOME|lib(?:cuda|cudart|nvrtc|cublas|cudnn|nvidia-ml)\b|NVML|nvidia-smi"
    r"|0 active drivers|accelerator device when none is available|nvcc\b",
    re.IGNORECASE,
)
_NO_SHAPES = re.compile(
    r"(\w+::\w+)[^\n]*(?:Meta|fake impl)|(?:'|<CustomOpDef\()(\w+::\w+)"
)
_WANTS_CUDA = re.compile(r"(?:CUDA|GPU) tensor|is_cuda|on (?:a )?(?:CUDA|GPU)", re.I)
_OURS_WENT_WRONG = (
    AttributeError,
    TypeError,
    KeyError,
    IndexError,
    AssertionError,
    NameError,
    RecursionError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    path: str
    line: int
    name: str
    frame: FrameType

    @property
    def where(self) -> str:
        return f"{short_path(self.path)}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """An error, and how the script came to it."""

    error: BaseException
    frames: tuple[_Frame, ...]
    tally: Tally

    @property
    def text(self) -> str:
        """Its first line."""
        return next(iter(str(self.error).splitlines()), "")

    @property
    def inner(self) -> _Frame | None:
        """Where it was raised."""
        return self.frames[-1] if self.frames else None

    @property
    def users(self) -> _Frame | None:
        """The innermost frame of the script's own, or of a library that is none."""
        installed = None
        for one in reversed(self.frames):
            if one.path.startswith(("<", TORCH)) or is_ours(one.path):
                continue
            if not one.path.startswith((*INSTALLED, PYTHON)):
                return one
            installed = installed or one
        return installed

    @property
    def place(self) -> str:
        users = self.users
        return "?" if users is None else users.where

    def inside(self, package: str) -> _Frame | None:
        """The outermost frame in a package."""
        marks = (f"/{package}/", f"\\{package}\\")
        return next((f for f in self.frames if any(m in f.path for m in marks)), None)


Rule = Callable[[_Failure], str | None]


def explain(error: BaseException, device: VirtualDevice) -> RehearsalError | None:
    """The line for an error that the rehearsal is the cause of; None: the script is.

    Frames of ours are taken out of the error's traceback.
    """
    if isinstance(error, RehearsalError):
        return error
    if not isinstance(error, Exception):
        return None
    frames = tuple(_frames(error))
    failure = _Failure(error=error, frames=frames, tally=device.tally)
    for rule in RULES:
        words = rule(failure)
        if words is not None:
            return RehearsalError(f"cannot rehearse: {words}")
    _hide_ours(error)
    return None


def _frames(error: BaseException) -> Iterator[_Frame]:
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        yield _Frame(
            path=code.co_filename,
            line=trace.tb_lineno,
            name=code.co_name,
            frame=trace.tb_frame,
        )
        trace = trace.tb_next


def _hide_ours(error: BaseException | None) -> None:
    """A script's traceback shows the script, and torch."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace = error.__traceback__
        while trace is not None:
            while trace.tb_next is not None and _is_rehearsals(trace.tb_next):
                trace.tb_next = trace.tb_next.tb_next
            trace = trace.tb_next
        error = error.__cause__ or error.__context__


def _is_rehearsals(trace: Any) -> bool:
    path = trace.tb_frame.f_code.co_filename
    return is_ours(path) and "rehearsal" in path


# Rules, the first that knows it


def _triton(failure: _Failure) -> str | None:
    at = failure.inside("triton")
    if at is None or isinstance(failure.error, ImportError):
        return None
    kernel = at.frame.f_locals.get("self")
    name = getattr(kernel, "__name__", None) or getattr(
        getattr(kernel, "fn", None), "__name__", "a kernel"
    )
    called = replace(failure, frames=failure.frames[: failure.frames.index(at)])
    return (
        f"the Triton kernel {name} at {called.place} runs on a GPU only. Call it "
        "through torch.library.custom_op with register_fake, or let the rehearsed "
        "script take the way without it"
    )


def _package(failure: _Failure) -> str | None:
    error = failure.error
    if not isinstance(error, ImportError):
        return None
    name = (error.name or "").partition(".")[0]
    known = next(
        (p for p in _OWN_KERNELS if p == name or re.search(rf"\b{p}\b", failure.text)),
        None,
    )
    if known is None and not _NO_GPU.search(failure.text):
        return None
    attends = "attn" in (known or "") or known == "xformers"
    instead = (
        "torch's scaled_dot_product_attention, which is rehearsed as flash attention"
        if attends
        else "torch's own operators"
    )
    return (
        f"{failure.place} imports {known or name or 'a library'}, which works on a GPU "
        f"only ({failure.text}). Let the rehearsed script use {instead}"
    )


def _extension(failure: _Failure) -> str | None:
    if not any(f.path.endswith("cpp_extension.py") for f in failure.frames):
        return None
    return (
        f"{failure.place} compiles a CUDA extension ({failure.text}). A rehearsal runs "
        "no kernels: declare the operator with torch.library and register_fake, or let "
        "the rehearsed script take the way without it"
    )


def _no_shapes(failure: _Failure) -> str | None:
    """A custom operator, or one of torch's, without an implementation for shapes."""
    text = str(failure.error)
    told = isinstance(failure.error, NotImplementedError) or "fake impl" in text
    found = _NO_SHAPES.search(text)
    if not told or found is None:
        return None
    name = found[1] or found[2]
    if name.startswith("aten::"):
        return (
            f"{name} at {failure.place} is an operator of torch's that has no rule for "
            "shapes, so its result is not known without numbers. Replace it in the "
            "rehearsed script, or give it one: "
            f'torch.library.register_fake("{name}")'
        )
    return (
        f"{name} at {failure.place} is an operator with a kernel of its own, and says "
        "nothing of its result's shape. Add "
        f'torch.library.register_fake("{name}"); with '
        "torch.utils.flop_counter.register_flop_formula it is priced by its FLOPs"
    )


def _compiled_code(failure: _Failure) -> str | None:
    """An extension's own check of where a tensor is, or its pointer."""
    inner = failure.inner
    if inner is None or inner.path.startswith(TORCH) or is_ours(inner.path):
        return None
    pointer = "data pointer" in str(failure.error)
    if not isinstance(failure.error, RuntimeError | ValueError) or not (
        pointer or _WANTS_CUDA.search(str(failure.error))
    ):
        return None
    return (
        f"{failure.place} calls compiled code that wants a tensor in a GPU's memory "
        f"({failure.text}). Tensors of a rehearsal have shapes only: declare the "
        "operator with torch.library and register_fake"
    )


def _needs_gpu(failure: _Failure) -> str | None:
    text = str(failure.error)
    private = isinstance(failure.error, AttributeError) and "_cuda" in text
    missing = isinstance(failure.error, RuntimeError | OSError | AssertionError)
    if not (private or (missing and _NO_GPU.search(text))):
        return None
    what = "CUDA graphs" if "CUDAGraph" in text else _torch_call(failure)
    return (
        f"{what} at {failure.place} needs a GPU ({failure.text}). Leave it out of the "
        "rehearsed script"
    )


def _torch_call(failure: _Failure) -> str:
    """What the script called of torch, or of a library."""
    users = failure.users
    after = False
    for one in failure.frames:
        if after and not is_ours(one.path):
            return f"{one.name} of {one.path.rpartition('/')[2]}"
        after = after or one is users
    return "a call"


def _made_up(failure: _Failure) -> str | None:
    """A size that hangs on a number which only the device would have."""
    users = failure.users
    if users is None or failure.inner is users:
        return None  # raised by the script itself
    if isinstance(failure.error, NotImplementedError):
        return None
    first = users.frame.f_code.co_firstlineno
    file = short_path(users.path)
    for kind, places in (
        ("answered with 1", failure.tally.answered),
        ("taken to be half of all", failure.tally.assumed),
    ):
        for place in places:
            path, _, line = place.rpartition(" ")[2].rpartition(":")
            if path == file and line.isdecimal() and first <= int(line) <= users.line:
                return (
                    f"{failure.place} ends in: {failure.text}. Its sizes depend on "
                    f"numbers that only the device would have ({place}, {kind}). Give "
                    "the rehearsed script sizes that the host knows, such as an even "
                    "split"
                )
    return None


def _of_ours(failure: _Failure) -> str | None:
    """What the modelled device does not know of."""
    error, inner = failure.error, failure.inner
    stand_in = getattr(error, "obj", None)
    lacks = isinstance(error, AttributeError) and type(stand_in).__module__.startswith(
        "fsdpdoctor.rehearsal"
    )
    ours = (
        inner is not None
        and _is_path_of_rehearsal(inner.path)
        and isinstance(error, _OURS_WENT_WRONG)
    )
    if not (lacks or ours):
        return None
    return (
        f"{failure.place} asks for something that the modelled device does not know: "
        f"{type(error).__name__}: {failure.text}. Leave it out of the rehearsed "
        "script, and report it to fsdpdoctor"
    )


def _is_path_of_rehearsal(path: str) -> bool:
    return is_ours(path) and "rehearsal" in path


RULES: tuple[Rule, ...] = (
    _triton,
    _package,
    _extension,
    _no_shapes,
    _compiled_code,
    _needs_gpu,
    _made_up,
    _of_ours,
)


def assumptions(tally: Tally) -> list[str]:
    """What a reader must know of numbers and prices that were made up."""
    found = []
    if tally.counted:
        found.append(
            "whole numbers and truths that only a device has were answered with 1 and "
            f"False: {_listed(tally.counted)}; where sizes or branches hang on one, "
            "times and memory are those of that answer"
        )
    if tally.assumed:
        found.append(
            "sizes that depend on data were taken to be half of all: "
            f"{_listed(tally.assumed)}"
        )
    if tally.guessed:
        found.append(
            "operators with kernels of their own were priced by the bytes they move: "
            f"{', '.join(sorted(tally.guessed))}; register_flop_formula prices them"
        )
    return found


def _listed(places: dict[str, int]) -> str:
    most = sorted(places, key=lambda place: (-places[place], place))
    shown = ", ".join(f"{place} ({places[place]} times)" for place in most[:3])
    return shown + (f" and {len(most) - 3} more places" if len(most) > 3 else "")
