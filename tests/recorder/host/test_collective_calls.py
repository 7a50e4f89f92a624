"""Collectives that FSDP2 did not issue: each once, with who issued it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import torch

from fsdpdoctor.quantities import MS
from fsdpdoctor.recorder.host import collective_operators
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Flag, Kind, Lane, Phase, Spans, StepRecord, Within
from tests.recorder import other_calls, small_model
from tests.recorder.conftest import Recorded

SCENARIOS = Path(other_calls.__file__).read_text().splitlines()
PARAMS = 2 + 4 * small_model.BLOCKS + 1


def line_of(text: str) -> int:
    """Where the scenarios hold a piece of code that they hold once."""
    (found,) = [i for i, line in enumerate(SCENARIOS, 1) if line.strip() == text]
    return found


def others(step: StepRecord) -> Spans:
    """The collectives of a step that are not FSDP2's."""
    return step.spans.rows(step.spans.kind == Kind.COLLECTIVE)


def callers(data: RankData, step: StepRecord) -> Counter[tuple[str, str, Within, int]]:
    """How many of each: what, called as, within, at which line."""
    sites = step.call_sites
    row_of = {int(op): row for row, op in enumerate(sites.op)}
    found: Counter[tuple[str, str, Within, int]] = Counter()
    for name, op in zip(others(step).name, others(step).op, strict=True):
        row = row_of[int(op)]
        place = data.names[int(sites.site[row])]
        found[
            data.names[int(name)],
            data.names[int(sites.via[row])],
            Within(int(sites.within[row])),
            int(place.rpartition(":")[2]),
        ] += 1
    return found


def test_every_caller_is_seen_once(two: Recorded) -> None:
    """Script, optimizer, clipping, loader, point-to-point: as often as they call."""
    data = two.rank("other_calls")

    found = callers(data, data.steps[1])

    send = ("send", "send", Within.SCRIPT, line_of("dist.send(metric, 1)"))
    assert found == {
        ("all_reduce", "all_reduce", Within.SCRIPT, line_of(ASYNC)): 1,
        send: 1,
        ("barrier", "barrier", Within.SCRIPT, line_of(BARRIER)): 1,
        ("broadcast", "broadcast_object_list", Within.LOADER, line_of(OBJECT)): 2,
        ("all_reduce", "all_reduce", Within.CLIP, line_of("dist.all_reduce(total)")): 1,
        ("all_gather", "full_tensor", Within.OPTIMIZER, line_of(FULL)): PARAMS,
    }


ASYNC = "work = dist.all_reduce(metric, async_op=True)"
BARRIER = "dist.barrier(dist.group.WORLD)"
OBJECT = "dist.broadcast_object_list(said)"
FULL = "param.grad.full_tensor()"


def test_the_scripts_own_of_fsdp2s_operators_are_seen_once(two: Recorded) -> None:
    """From Python by their methods, and a functional one by its operator; each with
    its wait.
    """
    data = two.rank("base_calls")
    step = data.steps[1]

    assert callers(data, step) == {
        ("all_gather", "all_gather_into_tensor", Within.SCRIPT, line_of(BASE)): 1,
        ("reduce_scatter", "reduce_scatter_tensor", Within.SCRIPT, line_of(REDUCE)): 1,
        ("all_gather", "", Within.SCRIPT, line_of(OUT)): 1,  # no function of torch's
    }
    rows = others(step)
    assert rows.bytes.tolist() == [8, 8, 8]
    waits = step.spans.rows(step.spans.kind == Kind.COLLECTIVE_WAIT)
    assert set(waits.op) == set(rows.op)
    assert (step.spans.kind == Kind.ALL_GATHER).sum() == 1 + 2 * small_model.BLOCKS


BASE = "dist.all_gather_into_tensor(two, one)"
REDUCE = "work = dist.reduce_scatter_tensor(one, two, async_op=True)"
OUT = "found = functional.all_gather_into_tensor_out(one, 2, name, out=two)"


def test_both_ranks_number_them_alike(two: Recorded) -> None:
    """Kind, bytes, group and number of every collective, in the order of the calls."""

    def sequence(rank: int) -> list[tuple[str, int, int, int]]:
        data = two.rank("other_calls", rank)
        rows = others(data.steps[1])
        said = zip(
            [data.names[int(name)] for name in rows.name],
            rows.bytes.tolist(),
            rows.group.tolist(),
            rows.seq.tolist(),
            strict=True,
        )
        called = [one for _, one in sorted(zip(rows.op.tolist(), said, strict=True))]
        return [one for one in called if one[0] not in ("send", "recv")]

    assert sequence(0) == sequence(1)
    assert len(sequence(0)) == PARAMS + 5


def test_fsdp2s_own_are_not_among_them(two: Recorded) -> None:
    """A plain training has none, and its gathers and reductions as before."""
    for step in two.rank("block").steps:
        assert len(others(step)) == 0
        assert len(step.call_sites) == 0
    spans = two.rank("block").steps[1].spans
    assert (spans.kind == Kind.ALL_GATHER).sum() == 1 + 2 * small_model.BLOCKS
    assert (spans.kind == Kind.REDUCE_SCATTER).sum() == 1 + small_model.BLOCKS


def test_a_wait_is_measured_where_it_is_made(two: Recorded) -> None:
    """An asynchronous one stands still twice: at the call, and 20 ms later."""
    data = two.rank("other_calls")
    step = data.steps[1]
    row = int(np.flatnonzero(others(step).flags & Flag.ASYNC_OP != 0)[0])
    one = others(step)
    waits = step.spans.rows(
        (step.spans.kind == Kind.COLLECTIVE_WAIT) & (step.spans.op == one.op[row])
    )

    assert data.names[int(one.name[row])] == "all_reduce"
    assert set(waits.lane) == {Lane.COMPUTE}
    assert len(waits) == 2
    assert waits.start_ns[1] - waits.end_ns[0] >= 20 * MS
    assert one.end_ns[row] == waits.end_ns[1]


def test_phase_is_what_ran(two: Recorded) -> None:
    """The optimizer's and clipping's are the optimizer's, the script's nobody's."""
    data = two.rank("other_calls")
    rows = others(data.steps[1])
    phases = Counter(
        (data.names[int(name)], Phase(int(phase)))
        for name, phase in zip(rows.name, rows.phase, strict=True)
    )

    assert phases == {
        ("all_gather", Phase.OPTIMIZER): PARAMS,
        ("all_reduce", Phase.OPTIMIZER): 1,
        ("all_reduce", Phase.OTHER): 1,
        ("broadcast", Phase.OTHER): 2,
        ("send", Phase.OTHER): 1,
        ("barrier", Phase.OTHER): 1,
    }


def test_the_installed_torch_has_what_is_needed() -> None:
    """Otherwise the evidence would be missing, and every test here with it."""
    assert collective_operators.supported()
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(
        "c10d::allreduce_", "BackendSelect"
    )
