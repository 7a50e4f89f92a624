"""A verdict in a sentence, and what to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fsdpdoctor.hang.blame import Cause, Verdict, call_key, issued_in
from fsdpdoctor.hang.error_meaning import Meaning, meaning_of
from fsdpdoctor.hang.standing import Standing, State
from fsdpdoctor.quantities import MS, count, duration, size
from fsdpdoctor.rank_end import Frame, RankEnd

EVERY_RANK = (
    "Let every rank issue the same collectives in the same order: take `if rank == 0` "
    "off whatever communicates (a save that gathers, evaluation, logging of a reduced "
    "value), and run each branch on every rank, with a dummy input where one has no "
    "data."
)

OWN_GROUP = (
    "Give the thread a process group of its own, made by every rank: "
    '`dist.new_group(backend="gloo")`, which `dcp.async_save` takes as its '
    "`process_group`; or wait for it before the training communicates again."
)

ADVICE = {
    Cause.DIVERGED: EVERY_RANK,
    Cause.OTHER_CALL: EVERY_RANK,
    Cause.OTHER_COUNT: EVERY_RANK,
    Cause.CIRCLE: EVERY_RANK,
    Cause.OTHER_SHAPE: "Give every rank a tensor of the same shape and dtype here: pad "
    "to the largest, or exchange the sizes first.",
    Cause.LEFT_EARLY: "Let every rank make the same number of steps and micro-batches: "
    "drop_last or an even split of the data, or agree on the end with an all-reduce.",
    Cause.STOPPED: "Find out who sent SIGSTOP (a debugger, a job control, a "
    "scheduler's suspend), and let it go on: kill -CONT PID.",
    Cause.SILENT: "Look at its process: py-spy dump --native --pid PID. It is stopped, "
    "or holds Python's lock in a call that does not end.",
    Cause.ELSEWHERE: "See why it stays at this line: a loader or a disk that does not "
    "answer, a loop without end, a wait for something that another rank does.",
    Cause.KILLED: "Look in the node's kernel log (dmesg) for the out-of-memory killer, "
    "and at memory.rss of this run; then at what else may send a signal that nobody "
    "handles (SIGKILL, or an alarm's SIGALRM), or calls os._exit.",
    Cause.ALL_GONE: "If the script calls os._exit, nothing is wrong, but for the last "
    "step, which sys.exit would keep. Else look for what ends all processes of a node: "
    "the out-of-memory killer (dmesg, memory.rss of this run), a scheduler.",
    Cause.TOGETHER: "Look at the network and the devices between these ranks; with "
    "NCCL, at NCCL_DEBUG=INFO and the Flight Recorder's dumps.",
    Cause.ENDED_OUTSIDE: "No error of the training ended it: a scheduler's time limit, "
    "a preemption, somebody's kill, or the script's own.",
}


def summary_of(verdict: Verdict, ranks: Sequence[Standing]) -> str:
    """One sentence: who, what, where, and what it does to the others."""
    by_rank = {one.rank: one for one in ranks}
    blamed = [by_rank[rank] for rank in verdict.ranks]
    others = [by_rank[rank] for rank in verdict.others]
    return _WORDS[verdict.cause](verdict, blamed, others)


def advice_of(verdict: Verdict, ranks: Sequence[Standing]) -> str:
    """What to change."""
    blamed = set(verdict.ranks)
    first = next(one for one in ranks if one.rank in blamed)
    if first.end is not None and first.end.status is not None:
        return "Look at why the script ends itself at this line."
    if verdict.cause == Cause.EXCEPTION and verdict.others:
        return f"{meaning(first).change} The other ranks' errors follow from it."
    if verdict.cause in (Cause.EXCEPTION, Cause.SAME_EXCEPTION):
        return meaning(first).change
    if verdict.cause == Cause.TOGETHER and any(one.in_group_twice for one in ranks):
        return OWN_GROUP
    if verdict.cause == Cause.ABORTED:
        return (
            f"Compare what the ranks do after this place: rank {first.rank} may issue "
            "a collective that the others do not, as in a save or an evaluation under "
            "`if rank == 0`. Let every rank issue the same ones in the same order."
        )
    if verdict.cause == Cause.CRASHED:
        return (
            f"Read the log of rank {first.rank} at this line; "
            "run with a debug build, or CUDA_LAUNCH_BLOCKING=1, if it is native code."
        )
    return ADVICE[verdict.cause]


def meaning(one: Standing) -> Meaning:
    """What the exception of a rank means."""
    return meaning_of(*_raised(one))


def _raised(one: Standing) -> tuple[str, str]:
    """The exception's type, and its message."""
    if one.end is not None and one.end.exception is not None:
        return one.end.exception, one.end.message or ""
    kind, _, message = one.ended.removeprefix("exception: ").partition(": ")
    return kind, message


def named(ranks: Sequence[Standing]) -> str:
    """As `rank 1`, `ranks 0 and 2`."""
    numbers = [str(one.rank) for one in ranks]
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    if len(numbers) > 6:
        return f"{len(numbers)} ranks ({', '.join(numbers[:4])}, ...)"
    return f"ranks {', '.join(numbers[:-1])} and {numbers[-1]}"


def line(frame: Frame | None) -> str:
    """As `train.py:43 in main`."""
    if frame is None:
        return ""
    function = "" if frame.function == "<module>" else f" in {frame.function}"
    return f"{frame.file}:{frame.line}{function}"


MOST_CALLERS = 4


def called(one: Standing) -> str:
    """As `loss.py:8 in loss_of, called at train.py:43 in evaluate`: what many call
    says less than who called it here.
    """
    return ", called at ".join(line(f) for f in one.user_frames[:MOST_CALLERS])


def at(one: Standing) -> str:
    """As ` at train.py:43 in main (step 6)`, or by its last event."""
    place = line(one.user_frame)
    event = f"{_event(one)}" if one.last is not None else ""
    if place:
        return f" at {place}" + (f", {event}" if event else "")
    return f" {event}" if event else ""


def _event(one: Standing) -> str:
    last = one.last
    if last is None:
        return ""
    words = f"{'after' if one.past_optimizer else 'at'} {last.what}"
    words += f" ({last.phase})" if last.phase else ""
    return words + _step(one)


def _step(one: Standing) -> str:
    if one.step < 0:
        return ""
    part = "" if one.last is None else _micro_batch(one.last.micro_batch)
    return f" in step {one.step}{part}"


def _micro_batch(number: int) -> str:
    return f", micro-batch {number}" if number >= 0 else ""


def inside(one: Standing) -> str:
    """What collective a rank is in: `all_reduce of float32[10] at train.py:35`."""
    if one.call is None:
        return _event(one) or "nowhere that it says"
    unit = one.last.unit if one.of_fsdp2 and one.last is not None else None
    words = one.call
    if unit is not None:
        words += f" of {unit}"
        words += f" ({one.last.phase})" if one.last and one.last.phase else ""
    elif one.operands:
        words += f" ({one.operands})"
    group = one.waits_in
    if group is not None:
        words += f", #{one.counts[group]} of group {group.name},"
    if one.background is not None:
        words += f" on its thread {one.background.thread}"
    place = line(one.user_frame)
    return words + (f" at {place}" if place else "") + _step(one)


def _they_wait(others: Sequence[Standing]) -> str:
    waiting = [one for one in others if one.call is not None]
    if not waiting:
        return ""
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"; {named(waiting)} {verb} in {inside(waiting[0])}"


def _diverged(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    d = v.divergence
    assert d is not None
    sides = list(d.versions.items())
    texts = []
    for numbers, event in sides[:2]:
        who = f"rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        phase = f" ({event.phase})" if event.phase else ""
        texts.append(
            f"{who} {'have' if len(numbers) > 1 else 'has'} {event.what}{phase} of "
            f"step {event.step}{_micro_batch(event.micro_batch)}"
        )
    few = f"rank {', '.join(map(str, sides[1][0]))}"
    reason = ""
    if d.left_out is not None:
        reason = f": {few} left out {d.left_out}"
    elif d.extra is not None:
        reason = f": {few} issued {d.extra} beyond the others"
    return (
        f"ranks took different ways in step "
        f"{min(event.step for event in d.versions.values())}: as collective {d.seq} of "
        f"group {d.group.name}, {texts[1]}, {texts[0]}{reason}"
    )


def _same_exception(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    who = f"all {count(len(blamed), 'rank')}" if not others else named(blamed)
    one = blamed[0]
    what = f"raised the same {_error(one)}"
    if one.end is not None and one.end.status is not None:
        what = f"ended themselves with the same {_exit(one.end)}"
    return (
        f"{who} {what}{at(one)}: one fault of the script, no difference between ranks"
    )


def _exit(end: RankEnd) -> str:
    said = f": {_cut(end.message)}" if end.message else ""
    return f"exit status {end.status}{said}"


def _error(one: Standing) -> str:
    kind, message = _raised(one)
    known = meaning_of(kind, message).means
    return f"{kind}: {_cut(message)}" + (f" ({known})" if known else "")


def _cut(message: str) -> str:
    return message if len(message) <= 160 else f"{message[:157]}..."


def _exception(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    one = blamed[0]
    if one.end is not None and one.end.status is not None:
        what = f"ended itself with {_exit(one.end)}"
    elif one.ended.startswith("exception"):
        what = f"raised {_error(one)}"
    else:
        what = f"ended ({one.ended})"
    return f"rank {one.rank} {what}{at(one)}{_before(one, others)}{_they_ended(others)}"


def _they_ended(others: Sequence[Standing]) -> str:
    hurt = [o for o in others if o.state in (State.TIMED_OUT, State.CUT_OFF)]
    return f"; {named(hurt)} lost it and ended of that" if hurt else ""


def _before(one: Standing, others: Sequence[Standing]) -> str:
    """How long before the others' last word."""
    times = [o.end_unix_ns or o.last_unix_ns for o in others]
    mine = one.end_unix_ns or one.last_unix_ns
    if not mine:
        return ""  # it has left no time, as without a heartbeat
    gap = max((t for t in times if t), default=0) - mine
    return f", {duration(gap)} before the last event elsewhere" if gap >= MS else ""


def _crashed(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    one = blamed[0]
    reason = one.fatal.reason if one.fatal is not None else "a fatal signal"
    return (
        f"rank {one.rank} was ended by a fatal signal ({reason}){at(one)}"
        f"{_before(one, others)}"
    )


def _aborted(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    return (
        f"{_crashed(v, blamed, others)}; a thread without Python ended it, as gloo's "
        "does when ranks' collectives do not fit each other"
    )


def _killed(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    one = blamed[0]
    return (
        f"rank {one.rank} was ended without a word (as by SIGKILL){at(one)}"
        f"{_before(one, others)}"
    )


def _all_gone(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    return (
        f"all {count(len(blamed), 'rank')} ended without a word{at(blamed[0])}: by "
        "os._exit, or killed together"
    )


def _left_early(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    one = blamed[0]
    left = [o for o in others if o.call is not None or o.end_unix_ns] or others
    return (
        f"{named(blamed)} ended well after {count(one.step + 1, 'step')}, while "
        f"{named(left)} {'was' if len(left) == 1 else 'were'} still in "
        f"{inside(left[0])}: ranks made different numbers of steps or micro-batches"
    )


def _stopped(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    return (
        f"{named(blamed)} {'is' if v.live else 'was'} stopped by a signal (SIGSTOP)"
        f"{at(blamed[0])}{_they_wait(others)}"
    )


def _silent(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    return (
        f"{named(blamed)} {'does' if len(blamed) == 1 else 'do'} not even say where it "
        f"is (stopped, gone, or its Python is locked){at(blamed[0])}"
        f"{_they_wait(others)}"
    )


def _elsewhere(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    one = blamed[0]
    if one.call is not None:
        return (
            f"{named(blamed)} did not come: it is in {inside(one)}{_they_wait(others)}"
        )
    frame = one.user_frame
    code = f" (`{frame.code}`)" if frame is not None and frame.code else ""
    never = "never came" if not v.live else "does not come"
    loader = ", in its data loader" if _in_loader(one) else ""
    return f"{named(blamed)} {never}: it is{at(one)}{code}{loader}{_they_wait(others)}"


def _in_loader(one: Standing) -> bool:
    words = ("loader", "fetch", "collate", "batches", "dataset")
    return any(
        "torch/utils/data" in frame.file
        or any(word in frame.function.lower() for word in words)
        for frame in one.stack
    )


def _other_call(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    sides: dict[tuple[object, ...], list[Standing]] = {}
    for one in (*blamed, *others):
        if one.call is not None:
            sides.setdefault(call_key(one), []).append(one)
    texts = [f"{named(side)} in {inside(side[0])}" for side in sides.values()]
    return f"ranks are in different collectives: {', '.join(texts[:3])}"


def _other_shape(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    ranks = (*blamed, *others)
    one = next((rank for rank in ranks if rank.call is not None), blamed[0])
    sides: dict[str, list[Standing]] = {}
    for rank in ranks:
        sides.setdefault(_what_it_gave(rank), []).append(rank)
    texts = [f"{named(side)} {what}" for what, side in sides.items()]
    return (
        f"ranks give different shapes to {one.call} at {line(one.user_frame)}: "
        f"{', '.join(texts)}{_step(one)}"
    )


def _what_it_gave(one: Standing) -> str:
    if one.operands is not None:
        return one.operands
    if one.issued_bytes:
        return f"{size(one.issued_bytes)} ({one.state.value} in it)"
    return f"one that is not known ({one.state.value} in it)"


def _other_count(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    sides: dict[int, list[Standing]] = {}
    for one in (*blamed, *others):
        if one.waits_in is not None:
            sides.setdefault(issued_in(one), []).append(one)
    (mine, few), (usual, rest) = list(sides.items())[:2]
    difference = abs(mine - usual)
    more = "more" if mine > usual else "fewer"
    return (
        f"ranks are at the same place with other counts: {named(few)} issued "
        f"{difference} collective{'s' * (difference > 1)} {more} before than "
        f"{named(rest)} ({mine} and {usual}){_on_threads((*blamed, *others))}; now all "
        f"are in {inside(rest[0])}"
    )


def _on_threads(ranks: Sequence[Standing]) -> str:
    """Who has issued one beside the training's, which ended before."""
    texts = []
    for one in ranks:
        for thread in one.position.threads[:1] if one.position is not None else ():
            frame = next((f for f in reversed(thread.stack) if f.user), None)
            place = f" at {line(frame)}" if frame is not None else ""
            texts.append(
                f"; rank {one.rank} was in {thread.call.name} on its thread "
                f"{thread.thread}{place}"
            )
    return "".join(texts[:3])


def _circle(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    texts = [f"rank {one.rank} in {inside(one)}" for one in blamed[:3]]
    return f"{named(blamed)} wait for each other, in a circle: {', '.join(texts)}"


def _together(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    stands = (
        f"all ranks are in {inside(blamed[0])}, and it {'does' if v.live else 'did'} "
        "not end"
    )
    two = [one for one in blamed if one.in_group_twice]
    if two:
        return (
            f"{stands}{_on_threads(two)}: collectives of two threads in one group meet "
            "in another order on each rank"
        )
    return f"{stands}: the fault is in the network or a device, not in the script"


def _ended_outside(v: Verdict, blamed: list[Standing], others: list[Standing]) -> str:
    one = blamed[0]
    signal = one.ended.removeprefix("signal: ")
    if not others:
        return f"every rank was ended from outside ({signal}){_step(one)}"
    lost = [other for other in others if other.state == State.CUT_OFF]
    then = f"; {named(lost)} lost it, and ended of that" if lost else ""
    return f"{named(blamed)} was ended by a signal ({signal}){_step(one)}{then}"


_Words = Callable[[Verdict, list[Standing], list[Standing]], str]

_WORDS: dict[Cause, _Words] = {
    Cause.DIVERGED: _diverged,
    Cause.SAME_EXCEPTION: _same_exception,
    Cause.EXCEPTION: _exception,
    Cause.CRASHED: _crashed,
    Cause.ABORTED: _aborted,
    Cause.KILLED: _killed,
    Cause.ALL_GONE: _all_gone,
    Cause.LEFT_EARLY: _left_early,
    Cause.STOPPED: _stopped,
    Cause.SILENT: _silent,
    Cause.ELSEWHERE: _elsewhere,
    Cause.OTHER_CALL: _other_call,
    Cause.OTHER_SHAPE: _other_shape,
    Cause.OTHER_COUNT: _other_count,
    Cause.CIRCLE: _circle,
    Cause.TOGETHER: _together,
    Cause.ENDED_OUTSIDE: _ended_outside,
}
