"""The hooks in C, around functions of this test's own."""

from __future__ import annotations

import contextlib
import gc
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from fsdpdoctor.recorder.tape import facts
from tests.recorder.tape.taped import Gather, Group, Taped

pytest.importorskip(
    "fsdpdoctor._tape", reason="it is not built: pip install . where a compiler is"
)


def test_a_call_is_a_row_before_it_and_one_after_it() -> None:
    """What is between the two is the original, with all that it was given."""
    taped, group = Taped(), Group()
    assert taped.around(Group.method)(group, 1, two=2) == (group, (1,), {"two": 2})
    before, after = taped.rows()
    assert before[0] == 8 + facts.BEGINS
    assert after[0] == 8 + facts.ENDS
    assert before[1] == after[1]
    assert before[2] <= after[2]
    assert before[4] is after[4] is group._fsdpdoctor_unit
    assert before[3] == after[3] == 0
    assert taped.rows() == []
    assert taped.tape.take_cost() > 0
    assert taped.tape.take_cost() == 0


@pytest.mark.parametrize(
    ("changed", "bits"),
    [
        ({"_all_gather_result": 0}, facts.GATHERS),
        ({"_sharded_state": "unsharded"}, facts.UNSHARDED),
        ({"_training_state": "forward"}, 1 << facts.STATE_SHIFT),
        ({"_training_state": "pre"}, 2 << facts.STATE_SHIFT),
        ({"_training_state": "post"}, 3 << facts.STATE_SHIFT),
        ({"_training_state": "of a newer torch"}, 4 << facts.STATE_SHIFT),
    ],
)
def test_what_is_so_of_a_group(changed: dict[str, Any], bits: int) -> None:
    """Each thing that is asked of it has its bit."""
    taped = Taped()
    taped.around(Group.method)(Group(**changed))
    assert [row[3] for row in taped.rows()] == [bits, bits]


def test_in_backward_is_asked_at_both_ends() -> None:
    """A hook may run into a backward, or out of one."""
    taped, group = Taped(), Group()

    def leaves(of: Group) -> None:
        taped.task = -1

    taped.task = 5
    taped.around(leaves)(group)
    before, after = taped.rows()
    assert before[3] == facts.BACKWARD
    assert after[3] == facts.NO_RESULT


def test_what_only_one_method_asks() -> None:
    """It costs the others nothing."""
    taped = Taped()
    taped.around(Group.method, asks_modules=True)(Group())
    taped.around(Group.method, asks_modules=True)(Group(modules=[1, 2]))
    taped.around(Group.method, asks_flags=True)(Group())
    taped.around(Group.method)(Group(), None)
    one, _, two, _, flags, _, partial, _ = (row[3] for row in taped.rows())
    reduces, _, reshards = facts.FLAGS
    assert (one, two) == (facts.ONE_MODULE, 0)
    assert flags == reduces | reshards
    assert partial == facts.PARTIAL


def test_an_error_of_theirs_passes_and_is_said() -> None:
    """No frame of ours is in its traceback."""
    taped = Taped()
    with pytest.raises(LookupError, match="theirs") as caught:
        taped.around(Group.raises)(Group())
    assert caught.traceback[-1].name == "raises"
    assert [row[3] for row in taped.rows()] == [0, facts.FAILED]
    assert taped.tape.take_error() is None


def test_an_error_of_ours_turns_the_tape_off() -> None:
    """The call goes on, as do those after it."""
    taped, group = Taped(), Group()
    del group._sharded_state
    assert taped.around(Group.method)(group) == (group, (), {})
    assert len(taped.tape) == 1  # it is to be read
    assert isinstance(taped.tape.take_error(), AttributeError)
    assert taped.tape.take_error() is None
    assert taped.tape.off
    assert taped.around(Group.method)(Group())
    assert taped.rows() == []


def test_a_unit_of_another_recording_is_made_anew() -> None:
    """Groups outlive recordings."""
    taped = Taped()
    old = Group(_fsdpdoctor_unit=SimpleNamespace(owner=object()))
    new = Group()
    del new._fsdpdoctor_unit
    for group in (old, new):
        taped.around(Group.method)(group)
        assert taped.rows()[0][4] is group._fsdpdoctor_unit
    assert taped.made == [old, new]


def test_what_could_not_be_made_is_left_out_and_what_a_signal_raises_passes() -> None:
    """What is asked in Python may run a handler of the script's."""
    group = Group(_fsdpdoctor_unit=None)
    taped = Taped(unit_of=lambda group: None)
    assert taped.around(Group.method)(group) == (group, (), {})
    assert taped.rows() == []

    def struck(group: Any) -> None:
        raise TimeoutError("an alarm of theirs")

    taped = Taped(unit_of=struck)
    with pytest.raises(TimeoutError, match="an alarm"):
        taped.around(Group.method)(group)
    assert not taped.tape.off


def _gathered(taped: Taped, gather: Gather, *, is_async: bool) -> tuple[Any, Group]:
    group, param = Group(), object()
    taped.by_param[id(param)] = group._fsdpdoctor_unit

    def foreach(params: Any, pg: Any, is_async: bool, given: Any) -> Any:
        assert given.result is gather.result
        assert given.allocate(9) == 9
        assert taped.recording.own_collective is False
        return given(output_tensor=640, input_tensor=320, group=pg)

    hook = taped.around(foreach, facts.OF_GATHER, swapped=Gather)
    return hook(([param]), "world", is_async, gather), group


def test_a_gather_is_seen_where_it_is_issued() -> None:
    """By what stands in for the collective that FSDP2 was given."""
    taped = Taped()
    result, group = _gathered(taped, Gather(), is_async=True)
    assert result is None
    begins, calls, returned, ends = taped.rows()
    assert [row[0] - 8 for row in (begins, calls, returned, ends)] == [
        *(facts.BEGINS, facts.CALLS, facts.RETURNED, facts.ENDS)
    ]
    assert begins[3] & facts.ASYNC
    assert begins[4] is group._fsdpdoctor_unit
    assert (begins[5], calls[5:], returned[5:]) == (3, (3, 640), (3, 640))
    assert returned[4] is None
    assert begins[2] <= calls[2] <= returned[2] <= ends[2]


def test_the_work_of_an_asynchronous_one_is_kept() -> None:
    """Somebody will wait for it."""
    taped = Taped()
    result, _ = _gathered(taped, Gather("work"), is_async=True)
    assert result == "work"
    assert taped.rows()[2][4] == ("kept", "work")


def test_a_collective_of_ours_is_marked_as_such_while_it_runs() -> None:
    """Also where it fails."""
    taped = Taped()
    seen = []

    class Looks(Gather):
        """A collective that looks around."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(taped.recording.own_collective)
            raise LookupError("theirs")

    with pytest.raises(LookupError):
        _gathered(taped, Looks(), is_async=False)
    assert seen == [True]
    assert taped.recording.own_collective is False
    assert [row[3] & facts.FAILED for row in taped.rows()] == [
        *(0, 0, facts.FAILED, facts.FAILED)
    ]


def test_a_reduction_tells_of_its_allocations() -> None:
    """Between them FSDP2 copies in."""
    taped, group, param = Taped(), Group(), object()
    taped.by_param[id(param)] = group._fsdpdoctor_unit

    def reduces(params: Any, scatter: Any) -> str:
        scatter.allocate(1)
        scatter.allocate(2)
        scatter(10, 20, "another")
        return "reduced"

    hook = taped.around(reduces, facts.OF_REDUCE, swapped=Gather)
    assert hook(([param]), Gather()) == "reduced"
    rows = taped.rows()
    assert [row[0] - 8 for row in rows] == [
        *(facts.BEGINS, facts.ALLOCATES, facts.ALLOCATES),
        *(facts.CALLS, facts.RETURNED, facts.ENDS),
    ]
    assert rows[3][5:] == (7, 20)


def test_a_gather_is_waited_for_before_it_is_copied_out() -> None:
    """Where there is something to wait for."""
    taped, group, param = Taped(), Group(), object()
    taped.by_param[id(param)] = group._fsdpdoctor_unit
    waited = []
    work = SimpleNamespace(wait=lambda: waited.append(len(taped.tape)))
    hook = taped.around(lambda result, params: "out", facts.OF_COPY_OUT)
    for given, codes in (
        (work, (facts.CALLS, facts.RETURNED, facts.BEGINS, facts.ENDS)),
        (None, (facts.BEGINS, facts.ENDS)),
    ):
        result = SimpleNamespace(all_gather_work=given)
        assert hook(result, ([param])) == "out"
        assert tuple(row[0] - 8 for row in taped.rows()) == codes
    assert waited == [1]


def test_params_of_no_unit_are_an_error_of_ours() -> None:
    """FSDP2 has none that no hook has seen."""
    taped = Taped()
    hook = taped.around(lambda *given: "went on", facts.OF_REDUCE)
    assert hook([object()]) == "went on"
    assert isinstance(taped.tape.take_error(), KeyError)


@pytest.mark.parametrize(("ranks", "rows"), [(2, 1), (1, 0)])
def test_where_only_collectives_are_counted(ranks: int, rows: int) -> None:
    """One row says of which unit, in which group, and in which pass."""
    taped, group, param = Taped(), Group(), object()
    taped.by_param[id(param)] = group._fsdpdoctor_unit
    taped.task = 4
    hook = taped.around(
        lambda *given: "issued", facts.OF_COUNT, group_at=1, asks_size=True
    )
    assert hook([param], SimpleNamespace(size=lambda: ranks)) == "issued"
    assert hook([param], None) == "issued"
    written = taped.rows()
    assert len(written) == rows
    for code, _, _, bits, unit, index, _ in written:
        assert (code, bits, index) == (8, facts.BACKWARD, 7)
        assert unit is group._fsdpdoctor_unit


def test_a_collective_of_a_unit_that_was_not_seen_yet_is_counted_too() -> None:
    """One may be gathered by hand before its first forward."""
    taped = Taped()
    hook = taped.around(lambda *given: "issued", facts.OF_COUNT, group_at=1)
    assert hook([object()], "world") == "issued"
    ((_, _, _, bits, unit, index, _),) = taped.rows()
    assert (bits, unit, index) == (0, None, 3)
    assert taped.tape.take_error() is None


def test_while_something_is_compiled_there_is_the_original_alone() -> None:
    """A row would be of no run."""
    taped = Taped()
    taped.compiler["_is_compiling_flag"] = True
    assert taped.around(Group.method)(Group())
    assert taped.rows() == []


def _nothing(*given: Any) -> None:
    """Of FSDP2, in a test that does not ask what it returns."""


class State:
    """FSDP2's state of a module."""

    def __init__(self, root: Any = None, *, queued: bool = False) -> None:
        self._state_ctx = SimpleNamespace(
            iter_forward_root=root, post_backward_final_callback_queued=queued
        )
        self._training_state = "idle"


@pytest.mark.parametrize(
    ("shape", "live", "rows"),
    [
        (facts.OF_ROOT_FORWARD, ("root", "none"), ("inner", "queued")),
        (facts.OF_ROOT_ENDS, ("root",), ()),
        (facts.OF_BACKWARD, ("root", "none", "inner", "pre"), ("queued",)),
        (facts.OF_CAST, ("root", "pre"), ()),
        (facts.OF_ROOT_ALONE, ("root", "none"), ()),
    ],
)
def test_which_states_are_left_to_the_live_hook(
    shape: int, live: tuple[str, ...], rows: tuple[str, ...]
) -> None:
    """Those where something begins or ends."""
    taped = Taped()
    states = {
        "root": State(),
        "none": State(),
        "inner": State(object()),
        "queued": State(object(), queued=True),
        "pre": State(object()),
    }
    states["root"]._state_ctx.iter_forward_root = states["root"]
    states["pre"]._training_state = "pre"
    if shape == facts.OF_ROOT_FORWARD:
        rows = (*rows, "pre")
    hook = taped.around(lambda state: "original", shape, live=lambda state: "live")
    found = {name: hook(state) for name, state in states.items()}
    assert tuple(n for n, said in found.items() if said == "live") == live
    written = [row[4]() for row in taped.rows()]
    assert written == [states[name] for name in rows]


def test_nothing_is_kept_once_it_is_read() -> None:
    """As many references as before, of all that a hook meets."""
    taped, group, gather, state = Taped(), Group(), Gather("work"), State(object())
    unit, params = group._fsdpdoctor_unit, [object()]
    taped.by_param[id(params[0])] = unit
    result = SimpleNamespace(all_gather_work=SimpleNamespace(wait=lambda: None))

    def collects(params: Any, pg: Any, is_async: bool, given: Any) -> Any:
        given.allocate(3)
        return given(64, 32, pg)

    calls = [
        (taped.around(Group.method, asks_flags=True), (group,)),
        (taped.around(collects, facts.OF_GATHER, swapped=Gather), (params, "x", 1)),
        (taped.around(collects, facts.OF_REDUCE, swapped=Gather), (params, "x", 1)),
        (taped.around(_nothing, facts.OF_COPY_OUT), (result, params)),
        (taped.around(_nothing, facts.OF_COUNT, group_at=1), (params, "x")),
        (taped.around(_nothing, facts.OF_PREFETCH), (group, "forward")),
        (taped.around(_nothing, facts.OF_ROOT_FORWARD, live=_nothing), (state,)),
    ]
    raises = taped.around(Group.raises)
    met = (group, unit, params[0], gather, gather.result, result, state, taped.tape)

    def references() -> list[int]:
        for _ in range(50):
            for hook, given in calls:
                swaps = (gather,) if len(given) == 3 else ()
                hook(*given, *swaps)
            with contextlib.suppress(LookupError):
                raises(group)
        taped.rows()
        gc.collect()
        return [sys.getrefcount(one) for one in met]

    assert references() == references()
    assert taped.tape.take_error() is None


def test_what_a_tape_is_made_of_is_checked() -> None:
    """One line says what was wrong."""
    with pytest.raises(ValueError, match="four training states"):
        Taped(states=("idle",))
    with pytest.raises(ValueError, match="no shape 99"):
        Taped().around(Group.method, 99)
