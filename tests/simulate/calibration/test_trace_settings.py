"""Calibration from traces: settings are inferred, and predictions are the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdpdoctor.changes.plan import ALL, Plan
from fsdpdoctor.cli.whatif import command
from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.exporters.kineto import TraceOptions, write_trace
from fsdpdoctor.importers import import_run
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Evidence, Kind, Lane, Spans
from fsdpdoctor.simulate.calibration.calibrate import calibrate
from fsdpdoctor.simulate.calibration.trace_settings import working
from fsdpdoctor.simulate.engine.run_constraints import RunConstraints
from fsdpdoctor.simulate.engine.simulate import simulate
from fsdpdoctor.simulate.engine.step import CommCosts, HostCosts, Mesh, Step, Unit
from fsdpdoctor.simulate.engine.synthetic_record import record
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.forecast import code_of
from fsdpdoctor.simulate.plans.predict import predict, replay
from tests.importers.real_traces import load
from tests.simulate.calibration.test_calibrate import COPIES, STEPS
from tests.simulate.steps import MS, prefetching, step, wire, with_units

HOST = HostCosts(
    root_pre_forward_ns=8_000,
    pre_forward_ns=20_000,
    unshard_ns=30_000,
    wait_ns=6_000,
    post_forward_ns=10_000,
    pre_backward_ns=15_000,
    post_backward_ns=25_000,
    reduce_ns=40_000,
    final_callback_ns=50_000,
)


def on_device(base: Step) -> Step:
    """The step on a device whose host takes time: it launches, and FSDP2 copies."""
    base = with_units(base, **COPIES)
    return replace(
        base,
        blocking=False,
        host=HOST,
        segments=tuple(
            replace(s, host_forward_ns=200_000, host_backward_ns=300_000)
            for s in base.segments
        ),
        loss_ns=max(base.loss_ns, MS // 50),
        host_loss_ns=MS // 100,
        after_ns=max(base.after_ns, MS),
        host_after_ns=MS // 10,
    )


MORE = {
    "separate group": step(separate_reduce_scatter_group=True),
    "backward prefetch": prefetching(step(5), 2, backward=True),
    "mixed precision": with_units(
        step(), orig_dtype="float32", param_dtype="bfloat16", reduce_dtype="float32"
    ),
    "slow host": step(input_ns=3 * MS, sync_after_forward=True, sync_at_end=True),
}
ALL_STEPS = {name: on_device(base) for name, base in (STEPS | MORE).items()}


def imported(base: Step, path: Path) -> RankData:
    """A simulated run, by way of a trace."""
    write_trace(record(base), path, TraceOptions(made_from="a simulation"))
    (found,) = import_run([path]).load()
    return found


@pytest.mark.parametrize("name", ALL_STEPS)
def test_a_trace_is_replayed_and_predicts_the_same(name: str, tmp_path: Path) -> None:
    """The replay is within 3 % of the step, predictions within 5 % of the truth."""
    base = ALL_STEPS[name]
    found = replay(calibrate(imported(base, tmp_path / "rank0.json")))

    assert found.calibration.measured_ns == simulate(base).step_ns
    assert abs(found.error) <= 0.03
    assert found.outcome.gathered_peak_bytes == simulate(base).gathered_peak_bytes
    for plan in (
        Plan(forward_prefetch=1, backward_prefetch=1),
        Plan(reshard_after_forward={ALL: False}),
    ):
        truth = simulate(changed(plan, base, RunConstraints()).step).step_ns
        assert abs(predict(found, plan).step_ns / truth - 1) <= 0.05


def policies(unit: Unit) -> tuple[object, ...]:
    """What FSDP2 was told to do with a unit, and what it moves."""
    return (
        unit.fqn,
        unit.reshard_after_forward,
        unit.unshard_async_op,
        unit.post_backward_at_end,
        unit.gathered_bytes(8),
        unit.reduced_bytes(8),
    )


@pytest.mark.parametrize(
    "name", ["plain", "async", "reshard False", "separate group", "mixed precision"]
)
def test_settings_show_in_what_was_done(name: str, tmp_path: Path) -> None:
    """Reshard, asynchronous unshards, groups and bytes are the original's."""
    base = ALL_STEPS[name]
    found = calibrate(imported(base, tmp_path / "rank0.json")).step

    assert [policies(u) for u in found.units] == [policies(u) for u in base.units]
    assert found.separate_reduce_scatter_group == base.separate_reduce_scatter_group


def test_lists_show_as_far_as_they_had_an_effect(tmp_path: Path) -> None:
    """With two ahead, the first unit gathers two and each later one its second."""
    base = on_device(prefetching(step(), 2))
    found = calibrate(imported(base, tmp_path / "rank0.json")).step

    assert [u.forward_prefetch for u in found.units] == [(), (2, 3), (4,), (), ()]
    assert [u.backward_prefetch for u in found.units] == [()] * 5


def test_a_reshard_over_fewer_ranks_shows_in_the_group(tmp_path: Path) -> None:
    """Backward gathered on a group of two."""
    small = CommCosts(
        all_gather=wire(), reduce_scatter=wire(), post_forward=wire(50_000)
    )
    base = on_device(with_units(step(wires=small), reshard_after_forward=2))
    found = calibrate(imported(base, tmp_path / "rank0.json")).step

    assert [u.reshard_after_forward for u in found.units] == [False, 2, 2, 2, 2]
    assert found.mesh == Mesh(shard=8)


@pytest.mark.parametrize(
    ("plan", "lacks"),
    [
        (Plan(merge=2), "parameters of each unit"),
        (Plan(split_root=True), "parameters of each unit"),
        (Plan(wrap="Block"), "parameters of each unit"),
        (Plan(param_dtype="bfloat16"), "dtypes"),
        (Plan(reduce_dtype="float32"), "dtypes"),
    ],
)
def test_plans_that_need_more_are_refused(
    plan: Plan, lacks: str, tmp_path: Path
) -> None:
    """A trace names no parameters and no dtypes: what needs them says so."""
    base = ALL_STEPS["plain"]
    found = replay(calibrate(imported(base, tmp_path / "rank0.json")))

    with pytest.raises(UsageError, match=lacks):
        predict(found, plan)


@pytest.mark.parametrize("lacks", [Evidence.UNITS, Evidence.KERNELS])
def test_without_labels_or_kernels_there_is_no_replay(
    lacks: Evidence, tmp_path: Path
) -> None:
    """Kernels missing means that no stall can be derived."""
    data = imported(ALL_STEPS["plain"], tmp_path / "rank0.json")
    evidence = tuple(e for e in data.header.evidence if e is not lacks)
    blind = replace(data, header=replace(data.header, evidence=evidence))
    named = "stalls" if lacks is Evidence.KERNELS else "units"

    with pytest.raises(InputError, match=f"does not show {named}, which a replay"):
        calibrate(blind)


def test_a_unit_without_gathers_is_named(tmp_path: Path) -> None:
    """Its bytes are in no collective, and nothing else in a trace says them."""
    data = imported(ALL_STEPS["plain"], tmp_path / "rank0.json")
    records = []
    for one in data.steps:
        spans = one.spans
        gone = (spans.kind == Kind.ALL_GATHER) & (spans.unit == 2)
        records.append(replace(one, spans=spans.rows(~gone)))

    with pytest.raises(InputError, match=r"no all-gather of layers\.1"):
        calibrate(replace(data, steps=tuple(records)))


@pytest.mark.parametrize(
    ("name", "lists"),
    [
        ("default", [(), (), (), (), (), ()]),
        ("prefetch", [(), (2,), (3,), (4,), (), ()]),
    ],
)
def test_a_real_trace_is_replayed(name: str, lists: list[tuple[int, ...]]) -> None:
    """FSDP2 on two CPU ranks, with and without lists: within 3 %, and they show."""
    for data in load(f"fsdp2_gloo_2ranks/{name}"):
        found = replay(calibrate(data))
        units = found.calibration.step.units

        assert abs(found.error) <= 0.03
        assert [u.forward_prefetch for u in units] == lists
        reshards = [u.reshard_after_forward for u in units]
        assert reshards == [False, True, True, True, True, False]


def test_a_backward_without_its_forward_is_refused(tmp_path: Path) -> None:
    """A damaged trace gets one line, not a guess and not a traceback."""
    data = imported(ALL_STEPS["plain"], tmp_path / "rank0.json")
    first, *others = data.steps
    spans = first.spans
    cut = replace(first, spans=spans.rows(spans.kind != Kind.FORWARD))

    with pytest.raises(InputError, match="step 3 shows a backward without its forward"):
        calibrate(replace(data, steps=(cut, *others)))


def test_compute_is_kernels_and_the_gaps_within_a_pass() -> None:
    """Launch gaps of one pass are its compute; gaps between two passes are not."""
    spans = Spans.build(
        kind=Kind.KERNEL,
        lane=Lane.COMPUTE,
        phase=[1, 1, 1, 2, 2],
        unit=[0, 0, 1, 1, 1],
        micro_batch=0,
        start_ns=[0, 15, 30, 50, 80],
        end_ns=[10, 20, 40, 60, 90],
    )

    assert working(spans).tolist() == [[0, 20], [30, 40], [50, 90]]


def test_whatif_reads_a_trace(tmp_path: Path) -> None:
    """The command predicts from a trace file, and searches past what it cannot."""
    path = tmp_path / "rank0.json"
    base = ALL_STEPS["plain"]
    write_trace(record(base), path, TraceOptions(made_from="a simulation"))
    run = CliRunner()

    predicted = run.invoke(command, [str(path), "--prefetch", "1", "--search"])
    refused = run.invoke(command, [str(path), "--merge", "2"])

    assert predicted.exit_code == 0, predicted.output
    assert "prefetch" in predicted.output
    assert isinstance(refused.exception, UsageError)
    assert "which a trace does not show" in str(refused.exception)


@pytest.mark.parametrize(
    ("policy", "said", "written", "unknown"),
    [
        (
            {"param_dtype": "bfloat16", "reduce_dtype": "float32"},
            None,
            "(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)",
            "mp_policy (dtypes are not known)",  # the root's
        ),
        (
            {"param_dtype": "bfloat16"},
            "bfloat16",
            "(param_dtype=torch.bfloat16)",
            "mp_policy's output_dtype",
        ),
        ({}, "float32", None, "mp_policy's output_dtype"),
        ({}, None, None, "mp_policy (dtypes are not known)"),
    ],
)
def test_code_keeps_what_collectives_show(
    policy: dict[str, str],
    said: str | None,
    written: str | None,
    unknown: str,
    tmp_path: Path,
) -> None:
    """Calls that replace the script's train in the dtypes that were gathered and
    reduced in, and name what a trace cannot show of the script's own.
    """
    data = imported(on_device(with_units(step(), **policy)), tmp_path / "rank0.json")
    units = tuple(replace(unit, gather_dtype=said) for unit in data.header.units)
    data = replace(data, header=replace(data.header, units=units))
    found = replay(calibrate(data))
    code = code_of(found, predict(found, Plan(reshard_after_forward={ALL: 2})))

    assert ("MixedPrecisionPolicy" in code) == (written is not None)
    assert (written or "fully_shard") in code
    assert f"# A trace does not show your calls' {unknown}, offload_policy" in code
