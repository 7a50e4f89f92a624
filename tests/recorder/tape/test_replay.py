"""What is made of rows, by hand."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fsdpdoctor.recorder import flag_bits
from fsdpdoctor.recorder.brackets import PASS_BY
from fsdpdoctor.recorder.patching import ErrorBorder
from fsdpdoctor.recorder.storage.recording import Recording
from fsdpdoctor.recorder.tape import facts
from fsdpdoctor.recorder.tape.extension import Row
from fsdpdoctor.recorder.tape.replay import Replay
from fsdpdoctor.recorder.tape.worlds import Taped


class Tape:
    """Rows that nobody's C has written."""

    def __init__(self) -> None:
        self.off = False
        self.error: Exception | None = None
        self.rows: list[Row] = []
        self.cost_ns = 0

    def take(self) -> list[Row]:
        """Those so far."""
        rows, self.rows = self.rows, []
        return rows

    def take_cost(self) -> int:
        """Since it was last asked."""
        cost, self.cost_ns = self.cost_ns, 0
        return cost

    def take_error(self) -> Exception | None:
        """The one that turned it off; once."""
        error, self.error = self.error, None
        return error

    def __len__(self) -> int:
        return len(self.rows) + (self.error is not None)


class Read:
    """A replay of such a tape, and what was said."""

    def __init__(self) -> None:
        self.beats: list[tuple[Any, ...]] = []
        self.stopped: list[str] = []
        beat = SimpleNamespace(beat_at=lambda *given: self.beats.append(given))
        recording = cast(Recording, SimpleNamespace(heartbeat=beat))
        self.guard = ErrorBorder(self.stopped.append)
        self.world = Taped(recording)
        self.replay = Replay(self.world, self.guard)
        self.tape = Tape()
        self.replay.reads(self.tape)
        self.said: list[Any] = []

    def write(
        self, code: int, call: int, time_ns: int, facts: int = 0, subject: Any = None
    ) -> None:
        """One row."""
        self.tape.rows.append((code, call, time_ns, facts, subject, -1, -1))

    def bracket(self, before: Callable[[Any], Any]) -> None:
        """Code 8 begins so, and says how it ended."""

        def after(token: Any, error: BaseException | None) -> None:
            self.said.append((token, self.world.now_ns(), error is not None))

        self.replay.bracket(8, before, after)


def test_a_bracket_gets_what_its_beginning_left_at_the_time_of_its_row() -> None:
    """Calls lie within each other."""
    read = Read()
    read.bracket(lambda subject: (subject, read.world.now_ns()))
    read.write(8, 1, 100, subject="outer")
    read.write(8, 2, 200, subject="inner")
    read.write(9, 2, 300, facts.FAILED)
    read.write(9, 1, 400)
    read.replay.catch_up()
    assert read.said == [(("inner", 200), 300, True), (("outer", 100), 400, False)]
    assert len(read.tape) == 0


def test_a_beginning_that_passes_by_has_no_end() -> None:
    """Nor has one that nobody has seen."""
    read = Read()
    read.bracket(lambda subject: PASS_BY)
    read.write(8, 1, 100)
    read.write(9, 1, 200)
    read.write(9, 7, 300)  # begun before there was a tape
    read.replay.catch_up()
    assert read.said == []


def test_what_hooks_took_is_a_cost_of_ours() -> None:
    """And what it took to read them, where nobody else counts it."""
    read = Read()
    read.bracket(lambda subject: subject)
    read.tape.cost_ns = 7
    read.write(8, 1, 100)
    read.replay.catch_up()
    assert read.guard.take_cost() == 7
    read.write(9, 1, 200)
    read.replay.catch_up_beside()
    read.write(8, 2, 300)
    read.replay.catch_up()
    assert read.guard.take_cost() > 0


def test_an_error_of_ours_ends_the_recording() -> None:
    """And writes no more rows."""
    read = Read()

    def fails(subject: Any) -> None:
        raise LookupError("ours")

    read.bracket(fails)
    read.write(8, 1, 100)
    read.replay.catch_up()
    assert read.guard.failed
    assert len(read.stopped) == 1
    assert "ours" in read.stopped[0]
    assert read.tape.off


def test_one_on_a_thread_of_ours_is_told_on_one_that_trains() -> None:
    """Hooks are taken off there alone."""
    read = Read()

    def fails(subject: Any) -> None:
        raise LookupError("ours")

    read.bracket(fails)
    read.write(8, 1, 100)
    read.replay.catch_up_beside()
    assert read.tape.off
    assert read.stopped == []
    read.replay.catch_up()
    assert len(read.stopped) == 1
    assert "ours" in read.stopped[0]


def test_what_turned_the_tape_off_ends_the_recording() -> None:
    """An error of the hooks themselves."""
    read = Read()
    read.tape.error, read.tape.off = KeyError("a name"), True
    read.replay.catch_up()
    assert "KeyError" in read.stopped[0]


def test_what_a_signal_raises_leaves_the_rows_after_it() -> None:
    """It is the script's, and no end of ours."""
    read = Read()

    def struck(subject: Any) -> Any:
        if subject == "struck":
            raise KeyboardInterrupt
        return subject

    read.bracket(struck)
    read.write(8, 1, 100, subject="struck")
    read.write(8, 2, 200, subject="after it")
    read.write(9, 2, 300)
    with pytest.raises(KeyboardInterrupt):
        read.replay.catch_up()
    assert not read.guard.failed
    read.replay.catch_up()
    assert read.said == [("after it", 300, False)]


@pytest.mark.parametrize("beside", [False, True])
def test_nobody_reads_within_reading(beside: bool) -> None:
    """A handler of the script's may train, or end the process."""
    read = Read()

    def reads(subject: Any) -> Any:
        read.replay.catch_up_beside() if beside else read.replay.catch_up()
        return subject

    read.bracket(reads)
    read.write(8, 1, 100, subject="once")
    read.write(9, 1, 200)
    read.replay.catch_up()
    assert read.said == [("once", 200, False)]
    assert not read.guard.failed


def test_a_thread_of_ours_leaves_it_to_who_reads_now() -> None:
    """It waits for nobody."""
    read = Read()
    entered, go_on = threading.Event(), threading.Event()

    def waits(subject: Any) -> Any:
        entered.set()
        go_on.wait()
        return subject

    read.bracket(waits)
    read.write(8, 1, 100, subject="first")
    reader = threading.Thread(target=read.replay.catch_up)
    reader.start()
    entered.wait()
    read.write(9, 1, 200)
    read.replay.catch_up_beside()
    assert len(read.tape) == 1
    go_on.set()
    reader.join()
    read.replay.catch_up_beside()
    assert read.said == [("first", 200, False)]


def test_what_was_left_when_hooks_were_taken_off_is_dropped() -> None:
    """It is of no step."""
    read = Read()
    read.bracket(lambda subject: subject)
    read.write(8, 1, 100, subject="begun")
    read.replay.catch_up()
    read.write(8, 2, 200, subject="never read")
    read.tape.off = True
    read.replay.start_anew()
    assert not read.tape.off
    read.write(9, 1, 300)
    read.write(9, 2, 400)
    read.replay.catch_up()
    assert read.said == []


def test_a_tape_with_an_error_stays_off() -> None:
    """Also where hooks are put in place again."""
    read = Read()
    read.tape.error, read.tape.off = KeyError("a name"), True
    read.replay.catch_up()
    read.replay.start_anew()
    assert read.tape.off


def test_an_error_of_a_signal_handler_is_theirs_and_the_tape_stays_on() -> None:
    """An alarm of the script's may ring while rows are read."""
    read = Read()

    def rings(number: int, frame: Any) -> None:
        raise TimeoutError("an alarm of theirs")

    def struck(subject: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return subject

    before = signal.signal(signal.SIGUSR1, rings)
    try:
        read.bracket(struck)
        read.write(8, 1, 100)
        with pytest.raises(TimeoutError, match="an alarm"):
            read.replay.catch_up()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not read.tape.off
    assert not read.guard.failed


def test_an_alarm_that_rang_in_a_hook_turns_nothing_off_for_good() -> None:
    """What a hook asks in Python may run a handler of the script's."""
    read = Read()

    def rings(number: int, frame: Any) -> None:
        raise TimeoutError("an alarm of theirs")

    before = signal.signal(signal.SIGUSR1, rings)
    try:
        try:
            signal.raise_signal(signal.SIGUSR1)
        except TimeoutError as error:
            read.tape.error, read.tape.off = error, True
        with pytest.raises(TimeoutError, match="an alarm"):
            read.replay.catch_up()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not read.tape.off
    assert read.stopped == []


def test_who_trains_waits_for_the_last_row_that_is_read_beside_it() -> None:
    """It was taken from the tape, and has not yet its meaning."""
    read = Read()
    entered, go_on = threading.Event(), threading.Event()

    def waits(subject: Any) -> Any:
        entered.set()
        go_on.wait()
        read.said.append(subject)
        return PASS_BY

    read.bracket(waits)
    read.write(8, 1, 100, subject="the last")
    reader = threading.Thread(target=read.replay.catch_up_beside)
    reader.start()
    entered.wait()
    threading.Timer(0.05, go_on.set).start()
    read.replay.catch_up()
    assert read.said == ["the last"]
    reader.join()


def test_prefetches_and_states_are_those_of_the_units() -> None:
    """In the order of the rows."""
    read = Read()
    units: Any = SimpleNamespace(prefetch=0, forward_state=None, backward_state=None)
    read.replay.prefetches(16, units)
    read.replay.states(24, 32, units)
    seen = []

    def looks(subject: Any) -> Any:
        seen.append(units.prefetch)
        return PASS_BY

    read.bracket(looks)
    for bits in (facts.FORWARD_PREFETCH, 0):
        read.write(16, 1, 100, bits)
        read.write(8, 2, 200)
        read.write(17, 1, 300)
    read.write(24, 3, 400, subject="a state")
    read.write(32, 4, 500, subject="another")
    read.replay.catch_up()
    assert seen == [flag_bits.FORWARD_PREFETCH, flag_bits.BACKWARD_PREFETCH]
    assert units.prefetch == 0
    assert (units.forward_state, units.backward_state) == ("a state", "another")


def test_between_recorded_steps_collectives_are_counted_and_units_beat() -> None:
    """A unit that was not seen yet has no number."""
    read = Read()
    counted: list[tuple[Any, ...]] = []
    hooks: Any = SimpleNamespace(counted=lambda world, *given: counted.append(given))
    read.replay.counts(16, 5, hooks)
    read.replay.begun(24, 6, 7)
    unit = SimpleNamespace(index=9)
    read.tape.rows += [
        (16, 1, 100, 0, unit, 3, -1),
        (16, 2, 200, 0, None, 3, -1),
        (24, 3, 300, 0, unit, -1, -1),
        (25, 3, 400, 0, unit, -1, -1),
        (25, 4, 500, facts.FAILED, unit, -1, -1),
    ]
    read.replay.catch_up()
    assert counted == [(5, 9, 3), (5, -1, 3)]
    assert read.beats == [(400, 6, 7, 9, -1, -1)]


def test_the_heartbeats_thread_reads_what_nobody_has_while_it_slept() -> None:
    """Much in one go costs least."""
    read = Read()

    def says(subject: Any) -> Any:
        read.said.append(subject)
        return PASS_BY

    read.bracket(says)
    read.write(8, 1, 100, subject="read by who trains")
    read.replay.catch_up()
    read.write(8, 2, 200, subject="left")
    read.replay.tick()
    assert read.said == ["read by who trains"]
    read.replay.tick()
    assert read.said == ["read by who trains", "left"]
