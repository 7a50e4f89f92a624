"""T20, FSDP2 on gloo: every label, count and order, default and explicit prefetch."""

from __future__ import annotations

from collections import Counter

import pytest

from fsdpdoctor.importers.fsdp2.passes import autograd_rows, autograd_threads
from fsdpdoctor.importers.reader.trace_file import Cat, Events, TraceFile
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence, Flag, Kind, Lane, Phase, Spans, StepRecord
from tests.importers.real_traces import load

UNITS = ("<root>", "layers.0", "layers.1", "layers.2", "layers.3", "norm, output")
FORWARD = UNITS
BACKWARD = ("layers.3", "layers.2", "layers.1", "layers.0")
REDUCED = ("norm, output", "layers.3", "layers.2", "layers.1", "layers.0", "<root>")


def rows(step: StepRecord, *kinds: Kind) -> Spans:
    """A step's spans of some kinds, by start."""
    return step.spans.rows(
        [int(kind) in kinds for kind in step.spans.kind]  # type: ignore[arg-type]
    )


def units(data: RankData, spans: Spans) -> tuple[str | None, ...]:
    """The units of some spans, in order."""
    return tuple(data.unit_name(unit) for unit in spans.unit.tolist())


@pytest.mark.parametrize("variant", ["default", "prefetch"])
def test_units_and_counts(variant: str) -> None:
    """Six all-gathers per middle layer over three steps, three of the root's and of
    `(norm, output)`, three reduce-scatters each.
    """
    for data in load(f"fsdp2_gloo_2ranks/{variant}"):
        gathers: Counter[str | None] = Counter()
        reduces: Counter[str | None] = Counter()
        for step in data.steps:
            gathers.update(units(data, rows(step, Kind.ALL_GATHER)))
            reduces.update(units(data, rows(step, Kind.REDUCE_SCATTER)))

        assert tuple(unit.fqn for unit in data.header.units) == UNITS
        assert [step.step for step in data.steps] == [2, 3, 4]
        assert [step.micro_batches for step in data.steps] == [1, 1, 1]
        assert gathers == {
            **dict.fromkeys(UNITS[1:5], 6),
            "<root>": 3,
            "norm, output": 3,
        }
        assert reduces == dict.fromkeys(UNITS, 3)
        assert len(data.outside) == 0


@pytest.mark.parametrize("variant", ["default", "prefetch"])
def test_order_and_phases(variant: str) -> None:
    """Forward order, then backward order, then reductions, each in its phase."""
    for data in load(f"fsdp2_gloo_2ranks/{variant}"):
        for step in data.steps:
            gathers = rows(step, Kind.ALL_GATHER)
            reduces = rows(step, Kind.REDUCE_SCATTER)

            assert units(data, gathers) == FORWARD + BACKWARD
            assert gathers.phase.tolist() == [Phase.FORWARD] * 6 + [Phase.BACKWARD] * 4
            assert units(data, reduces) == REDUCED
            assert set(reduces.phase.tolist()) == {Phase.BACKWARD}
            assert gathers.bytes.tolist() == [
                *(524288, 2104320, 2104320, 2104320, 2104320, 528384),
                *(2104320, 2104320, 2104320, 2104320),
            ]


def test_prefetch_is_told_from_the_labels() -> None:
    """Backward prefetch by default; forward prefetch only where it was set, issued by
    the unit whose forward was about to run.
    """
    forward = {
        "default": [Flag.NONE] * 6,
        "prefetch": [Flag.NONE, Flag.NONE, *[Flag.FORWARD_PREFETCH] * 3, Flag.NONE],
    }
    issuers = {
        "default": FORWARD,
        "prefetch": (
            "<root>",
            "layers.0",
            "layers.0",
            "layers.1",
            "layers.2",
            UNITS[5],
        ),
    }
    for variant, expected in forward.items():
        for data in load(f"fsdp2_gloo_2ranks/{variant}"):
            for step in data.steps:
                gathers = rows(step, Kind.ALL_GATHER)
                prefetch = Flag.FORWARD_PREFETCH | Flag.BACKWARD_PREFETCH
                flags = [Flag(int(flag)) & prefetch for flag in gathers.flags]
                by = tuple(data.unit_name(unit) for unit in gathers.by_unit.tolist())

                assert flags == [*expected, *[Flag.BACKWARD_PREFETCH] * 4]
                assert by == (
                    *issuers[variant],
                    *("norm, output", "layers.3", "layers.2", "layers.1"),
                )
                assert [bool(int(flag) & Flag.FIRST) for flag in gathers.flags] == [
                    True,
                    *[False] * 9,
                ]


def test_what_a_trace_without_a_device_can_show() -> None:
    """Waits are measured on the host; kernels, memory and configuration are absent."""
    (data, _) = load("fsdp2_gloo_2ranks/default")

    assert data.evidence == {
        Evidence.UNITS,
        Evidence.STEPS,
        Evidence.MICRO_BATCHES,
        Evidence.STALLS,
        Evidence.COLLECTIVES,
        Evidence.OTHER_COLLECTIVES,
        Evidence.ISSUE_TIMES,
        Evidence.HOST,
        Evidence.OPTIMIZER,
        Evidence.WINDOWS,
    }
    assert (data.header.device, data.header.clock) == ("cpu", "host")
    assert data.header.warnings == (
        (
            "shapes were recorded (record_shapes): host times are inflated by the "
            "profiler itself"
        ),
    )


def test_an_unshard_is_joined_by_its_op() -> None:
    """Copy-in, all-gather, wait and copy-out of one unshard follow one another."""
    (data, _) = load("fsdp2_gloo_2ranks/default")
    step = data.steps[1]
    gather = rows(step, Kind.ALL_GATHER).rows([1])  # type: ignore[arg-type]
    mine = step.spans.rows(step.spans.op == gather.op[0])

    assert [
        (Kind(kind).name, start - step.start_ns, end - step.start_ns)
        for kind, start, end in zip(
            mine.kind.tolist(),
            mine.start_ns.tolist(),
            mine.end_ns.tolist(),
            strict=True,
        )
    ] == [
        ("COPY_IN", 10461583, 11294477),
        ("UNSHARD", 10461583, 22313471),
        ("ALL_GATHER", 11294477, 22313471),
        ("ALL_GATHER_WAIT", 11294477, 22313471),
        ("COPY_OUT", 22365171, 23515371),
        ("UNSHARDED", 23515371, 31324258),
    ]


@pytest.mark.parametrize("variant", ["default", "prefetch"])
def test_unshard_windows(variant: str) -> None:
    """One window per gather, used, and none of a unit's overlap; the root's lasts from
    its forward to the end of its backward, as does that of the last unit.
    """
    for data in load(f"fsdp2_gloo_2ranks/{variant}"):
        for step in data.steps:
            windows = rows(step, Kind.UNSHARDED)
            gathers = rows(step, Kind.ALL_GATHER)
            by_unit = {
                unit: windows.rows(windows.unit == i) for i, unit in enumerate(UNITS)
            }

            assert sorted(windows.op.tolist()) == sorted(gathers.op.tolist())
            assert set(windows.lane.tolist()) == {Lane.UNSHARDED}
            assert (windows.flags & Flag.NEVER_USED == 0).all()
            assert {unit: len(mine) for unit, mine in by_unit.items()} == {
                **dict.fromkeys(UNITS[1:5], 2),
                "<root>": 1,
                "norm, output": 1,
            }
            for unit, mine in by_unit.items():
                backward = rows(step, Kind.BACKWARD)
                backward = backward.rows(backward.unit == UNITS.index(unit))
                assert (mine.end_ns[:-1] <= mine.start_ns[1:]).all()
                assert mine.end_ns[-1] >= backward.end_ns[-1]


def test_autograds_own_thread_is_told_from_the_steps() -> None:
    """Where it evaluated functions and no step was marked; on a CPU there is none."""
    names = (f"{EVALUATED}: AddBackward0", "ProfilerStep#3", "aten::add")
    events = Events.build(
        4,
        cat=[Cat.CPU_OP, Cat.ANNOTATION, Cat.CPU_OP, Cat.CPU_OP],
        name=[0, 1, 0, 2],
        tid=[7, 5, 5, 9],
    )
    trace = TraceFile(names=names, events=events)

    assert autograd_rows(trace).tolist() == [0, 2]
    assert autograd_threads(trace).tolist() == [7]


EVALUATED = "autograd::engine::evaluate_function"
