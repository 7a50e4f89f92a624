"""Says how this rank ends, and where."""

from __future__ import annotations

import re
import time
from dataclasses import replace

from fsdpdoctor import redact
from fsdpdoctor.rank_end import EndKind, Position, RankEnd
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.host.position import call_of_error, stack_of_error

MOST_MESSAGE = 1000
MOST_CAUSES = 3
"""Of a chain: what lies deeper is seldom another's."""

NOTE_S = 1.0
"""A stack is noted in milliseconds, on a busy machine in tenths of a second."""
LOOK_S = 0.005

_KIND = re.compile(r"(exception|signal|exit): ?(.*)", re.DOTALL)


def rank_end(
    ended: str, error: BaseException | None, position: Position, now: int
) -> RankEnd | None:
    """The end that `ended` says in words; None where only the recording ended."""
    if ended == "done":
        return RankEnd(
            kind=EndKind.DONE, time_unix_ns=now, position=replace(position, stack=())
        )
    found = _KIND.match(ended)
    if found is None:
        return None
    kind = EndKind(found[1])
    if error is not None:
        position = replace(
            position,
            stack=stack_of_error(error.__traceback__),
            call=call_of_error(error.__traceback__),
        )
    of_error = error is not None and kind == EndKind.EXCEPTION
    last_words = getattr(error, "code", None) if kind == EndKind.EXIT else None
    return RankEnd(
        kind=kind,
        time_unix_ns=now,
        exception=_type_name(error) if error is not None and of_error else None,
        message=_message(error)
        if error is not None and (of_error or isinstance(last_words, str))
        else None,
        signal=found[2] if kind == EndKind.SIGNAL else None,
        status=int(found[2]) if kind == EndKind.EXIT else None,
        position=position,
    )


def _type_name(error: BaseException) -> str:
    kind = type(error)
    if kind.__module__ in ("builtins", "__main__"):
        return kind.__qualname__
    return f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    """What it says, and what it was raised from: a pipeline's schedule, for one, says
    of an error only in which stage it came.
    """
    words = [border.words_of(error)]
    seen = {id(error)}
    while len(words) <= MOST_CAUSES and (cause := _cause(error)) is not None:
        if id(cause) in seen:
            break
        seen.add(id(cause))
        words.append(f"from {_type_name(cause)}: {border.words_of(cause)}{_at(cause)}")
        error = cause
    told = [redact.text(one)[: MOST_MESSAGE // len(words)] for one in words]
    return "; ".join(told)


def _cause(error: BaseException) -> BaseException | None:
    """What it was raised from by its raiser's word; of a group the first member."""
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return members[0] if members else error.__cause__


def _at(error: BaseException) -> str:
    mine = [frame for frame in stack_of_error(error.__traceback__) if frame.user]
    return f" at {mine[-1].file}:{mine[-1].line}" if mine else ""


class Noting:
    """While the training thread notes of what it ended: a signal's thread, which may
    come meanwhile, waits for it.
    """

    def __init__(self) -> None:
        self.busy = False

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, *error: object) -> None:
        self.busy = False

    def wait(self) -> None:
        """Until it is noted, but not for good."""
        for _ in range(round(NOTE_S / LOOK_S)):
            if not self.busy:
                return
            time.sleep(LOOK_S)
