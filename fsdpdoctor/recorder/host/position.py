"""Where this rank is now: its stack, the collective that it is in, and how many
collectives it has issued in each process group.

Everything is asked from outside the training thread, or as it ends: a running step
pays nothing.
"""

from __future__ import annotations

import linecache
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

from fsdpdoctor import redact
from fsdpdoctor.rank_end import Call, Frame, GroupCount, Position, ThreadPosition
from fsdpdoctor.recorder.host.source_paths import LAUNCHER, TORCH, Paths
from fsdpdoctor.recorder.host.thread_stacks import StackFrame, ThreadStacks

MOST_FRAMES = 64
"""Innermost; what comes before them is the launcher's way into the script."""

MOST_THREADS = 8
MOST_CODE = 160

_COLLECTIVE_FILES = (
    f"{TORCH}distributed{os.sep}distributed_c10d.py",
    f"{TORCH}distributed{os.sep}_functional_collectives.py",
)
_LOGGER = f"{TORCH}distributed{os.sep}c10d_logger.py"
"""Whose wrapper is what is left of a collective, once an error has left it."""
_DTENSOR = f"{TORCH}distributed{os.sep}tensor{os.sep}"
_NO_COLLECTIVE = frozenset(
    {"init_process_group", "destroy_process_group", "new_group", "get_rank"}
    | {"_new_process_group_helper", "new_subgroups", "split_group"}
)
"""Functions of the same files that set up, and issue nothing of the user's."""
_ASKING = (
    *("get_", "_get_", "is_", "_is_", "_check_", "_rank_not_in"),
    "_distributed_excepthook",
)
"""How functions begin that issue nothing, some of them within a collective."""

_FRAMES_CAN_BE_HAD = not (3, 11) <= sys.version_info < (3, 11, 5)
"""Before, asking for all frames could end in a deadlock (python/cpython 106883)."""


def frames_of(frame: StackFrame | None) -> list[StackFrame]:
    """A frame and those that called it, innermost first."""
    found: list[StackFrame] = []
    while frame is not None and len(found) < MOST_FRAMES:
        found.append(frame)
        frame = frame.f_back
    return found


def stack_of(frames: Sequence[StackFrame]) -> tuple[Frame, ...]:
    """A stack, innermost last."""
    return _stack([(frame, frame.f_lineno) for frame in frames])


def stack_of_error(trace: TracebackType | None) -> tuple[Frame, ...]:
    """The stack that an error came up through, innermost last."""
    return _stack([(t.tb_frame, t.tb_lineno) for t in _traces(trace)])


def call_of_error(trace: TracebackType | None) -> Call | None:
    """The collective that an error came out of."""
    return call_in([t.tb_frame for t in _traces(trace)])


def _traces(trace: TracebackType | None) -> list[TracebackType]:
    """Innermost first, as the stacks here."""
    found: list[TracebackType] = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found[::-1][:MOST_FRAMES]


def _stack(lines: Sequence[tuple[StackFrame, int | None]]) -> tuple[Frame, ...]:
    paths = Paths()
    found: list[Frame] = []
    code_shown = False
    for frame, line in lines:
        path = frame.f_code.co_filename
        if path == LAUNCHER:
            break  # what comes before the script is how we started it
        user = paths.is_users(path)
        found.append(
            Frame(
                file=paths.short(path),
                line=line or 0,
                function=frame.f_code.co_name,
                user=user,
                code=_code(path, line or 0) if user and not code_shown else None,
            )
        )
        code_shown = code_shown or user
    return tuple(reversed(found))


def _code(path: str, number: int) -> str | None:
    line = linecache.getline(path, number).strip()
    return redact.text(line)[:MOST_CODE] if line else None


def call_in(frames: Sequence[StackFrame]) -> Call | None:
    """The collective that a stack, innermost first, is in: its outermost function,
    which the caller knows by name, and the tensors of the innermost, which are sent,
    where the frames have their variables.
    """
    inside: list[StackFrame] = []
    logged: StackFrame | None = None
    of_dtensor: str | None = None  # "full_tensor": what a DTensor was asked for
    for frame in frames:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path in _COLLECTIVE_FILES:
            if name.startswith(_ASKING):
                inside.clear()  # what it calls asks, too
            else:
                inside.append(frame)
        elif path == _LOGGER and name == "wrapper":
            logged = frame
        elif (inside or logged) and not path.startswith(TORCH):
            break
        elif inside and path.startswith(_DTENSOR) and not name.startswith("_"):
            of_dtensor = name
    if not inside:
        return None if logged is None else _logged(logged)
    if any(f.f_code.co_name in _NO_COLLECTIVE for f in inside):
        return None
    return Call(
        name=of_dtensor or inside[-1].f_code.co_name,
        operands=_operands(inside[0]),
        group=_group_name(inside[0]),
    )


def _logged(wrapper: StackFrame) -> Call | None:
    """The collective whose error is being noted down."""
    local = _variables(wrapper)
    name = getattr(local.get("func"), "__name__", None)
    if not isinstance(name, str) or name in _NO_COLLECTIVE or name.startswith(_ASKING):
        return None
    given = (*local.get("args", ()), *local.get("kwargs", {}).values())
    shown = [_tensor(t) for value in given for t in _tensors(value)]
    return Call(name=name, operands=", ".join(shown[:4]) or None)


def _variables(frame: StackFrame) -> dict[str, Any]:
    """Its local variables; none of a frame that was only told."""
    return getattr(frame, "f_locals", {})


def _operands(frame: StackFrame) -> str | None:
    """The tensors that a collective was given, by type and shape."""
    count: int = getattr(frame.f_code, "co_argcount", 0)
    names: tuple[str, ...] = getattr(frame.f_code, "co_varnames", ())
    given = [_variables(frame).get(name) for name in names[:count]]
    shown = [_tensor(t) for value in given for t in _tensors(value)]
    return ", ".join(shown[:4]) or None


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [one for one in value if isinstance(one, torch.Tensor)]
    return []


def _tensor(tensor: torch.Tensor) -> str:
    shape = ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"


def _group_name(frame: StackFrame) -> str | None:
    variables = _variables(frame)
    if not variables:
        return None
    group = variables.get("group") or variables.get("pg")
    try:
        if group is None:
            group = dist.group.WORLD
        name = getattr(group, "group_name", None)
    except (RuntimeError, ValueError):
        return None
    return str(name) if name else None


def group_counts() -> tuple[GroupCount, ...]:
    """How many collectives were issued in each group; empty where none is set up."""
    world: Any = getattr(dist.distributed_c10d, "_world", None)
    groups: Any = getattr(world, "pg_map", {})
    return tuple(one for group in list(groups) for one in _count_of(group))


def _count_of(group: Any) -> Iterator[GroupCount]:
    try:
        yield GroupCount(
            name=str(group.group_name),
            ranks=tuple(dist.get_process_group_ranks(group)),
            seq=int(group._get_sequence_number_for_group()),
        )
    except (RuntimeError, KeyError, ValueError, AttributeError):
        return  # this backend does not count, or the group is being torn down


class Positions:
    """Tells where the threads of this process are."""

    def __init__(self) -> None:
        self._stacks = ThreadStacks()
        self._asked: dict[int, tuple[object, Call]] = {}

    def forget(self) -> None:
        """Something has moved: the same line may be another collective's."""
        self._asked.clear()

    def close(self) -> None:
        """It is asked no more."""
        self._stacks.close()

    def now(
        self,
        training: int,
        step: int,
        micro_batch: int,
        moved: int,
        *,
        standing: bool,
    ) -> Position:
        """Where they are, the training thread and those that are in a collective.

        Unless they are `standing` still, those that were not told of before are left
        out where to ask for them may end the process: [Note: Stacks of other threads].
        """
        here = threading.get_ident()
        told = self._stacks.now(training, standing=standing)
        told.pop(here, None)
        if training == here:
            mine = frames_of(sys._getframe(1))
            call = call_in(mine)
        else:
            mine = frames_of(told.pop(training, None))
            call = self._call(training, mine)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        others: list[ThreadPosition] = []
        for ident, frame in told.items():
            stack = frames_of(frame)
            found = self._call(ident, stack)
            if found is None:
                continue
            # Of a device's backward the hooks run on threads that Python did not start.
            if call is None and _in_backward(mine) and _not_pythons(names.get(ident)):
                call = found
                continue
            name = redact.text(names.get(ident, "unnamed"))
            at = ThreadPosition(thread=name, call=found, stack=stack_of(stack))
            others.append(at)
        return Position(
            step=step,
            micro_batch=micro_batch,
            progress_unix_ns=moved,
            stack=stack_of(mine),
            call=call,
            groups=group_counts(),
            threads=tuple(others[:MOST_THREADS]),
        )

    def _call(self, thread: int, told: list[StackFrame]) -> Call | None:
        """The collective that a thread is in. Its variables are in its own frames
        alone: they are looked at once, and of a thread that stands in a collective.
        """
        call = call_in(told)
        if call is None or not _FRAMES_CAN_BE_HAD:
            return call
        stack = tuple((frame.f_code, frame.f_lineno) for frame in told)
        asked = self._asked.get(thread)
        if asked is None or asked[0] != stack:
            live = call_in(frames_of(sys._current_frames().get(thread)))
            same = live is not None and live.name == call.name
            asked = self._asked[thread] = (stack, live if live and same else call)
        return asked[1]


def _in_backward(frames: Sequence[StackFrame]) -> bool:
    return any(f.f_code.co_name == "_engine_run_backward" for f in frames[:4])


def _not_pythons(name: str | None) -> bool:
    return name is None or name.startswith("Dummy-")
