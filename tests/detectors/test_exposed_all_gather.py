"""FD101, exposed-all-gather."""

from __future__ import annotations

from fsdpdoctor.detectors.exposed_all_gather import LATE, exposed_all_gather
from fsdpdoctor.detectors.judged_stalls import exposed
from fsdpdoctor.finding import Location, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.schema import Evidence, ModelSpec
from fsdpdoctor.testing import RECORDED, draw, measured, unit
from tests.analysis.test_no_grad import PICTURE
from tests.detectors.answers import CUDA, codes, found, not_judged, only, without

LATE_GATHERS = """
    all_gather  0...............1111................2222........
    wait        0...............1111................2222........
    forward     .0000000000000000000.1111111111111111...22222222
"""


def test_units_with_one_cause_are_one_finding() -> None:
    """layers.1 and layers.2 each wait 4 of 48 ms for the wire, after the first."""
    m = measured(draw(LATE_GATHERS, CUDA), source="rehearsal")
    finding = only(exposed_all_gather, m)

    assert finding.units == ("layers.1", "layers.2")
    assert finding.cost_ns_per_step == 8 * MS
    assert finding.phase == "forward"
    assert finding.ranks == (0,)
    assert finding.severity == Severity.CRITICAL
    assert finding.evidence["by_cause"] == {
        "host_late": 0,
        "queued": 0,
        "straggler": 0,
        "wire": 8 * MS,
        "tail": 0,
    }
    assert finding.places[0] == Location(
        rank=0,
        step=3,
        start_ns=(3 * 48 + 16) * MS,
        end_ns=(3 * 48 + 20) * MS,
        unit="layers.1",
    )


def test_each_units_stalls_apart() -> None:
    """The same rows, in the same order, as by its name."""
    stalls = exposed(measured(draw(LATE_GATHERS, CUDA), source="rehearsal"))

    apart = dict(stalls.apart())

    assert apart["layers.1"].ns_per_step == 4 * MS
    assert {unit: part.rows.start_ns.tolist() for unit, part in apart.items()} == {
        unit: stalls.named(unit).rows.start_ns.tolist() for unit in stalls.by_unit()
    }


def test_passes_without_gradients_are_left_out() -> None:
    """4 of their 8 ms wait in every step: the finding has the 2 ms of training alone,
    and the budget the passes in a row of their own.
    """
    m = measured(draw(PICTURE))
    finding = only(exposed_all_gather, m)

    assert (finding.units, finding.cost_ns_per_step) == (("layers.0",), 2 * MS)
    assert m.budget_ns_per_step()["no_grad"] == 8 * MS


def test_one_rank_cannot_tell_a_late_rank_from_the_wire() -> None:
    """The same with no other rank to compare: told, without a severity of its own."""
    finding = only(exposed_all_gather, measured(draw(LATE_GATHERS, CUDA)))

    assert finding.severity == Severity.INFO
    assert finding.cost_ns_per_step == 8 * MS
    assert "a rank was late, which cannot be told apart" in finding.summary
    assert finding.evidence["by_cause"] == {
        "host_late": 0,
        "queued": 0,
        "straggler": None,
        "wire": None,
        "tail": 0,
        "wire_or_straggler": 8 * MS,
    }


def test_the_code_chains_the_units_as_they_ran() -> None:
    """The advice prefetches layers.1 from layers.0, and so on, in forward order."""
    finding = only(exposed_all_gather, measured(draw(LATE_GATHERS, CUDA)))

    assert 'order = ["layers.0", "layers.1", "layers.2"]' in codes(finding)[0]
    assert "unit.set_modules_to_forward_prefetch([following])" in codes(finding)[0]
    assert finding.advice[0].memory_cost_bytes == 4 << 20


def test_hidden_gathers_are_no_finding() -> None:
    """Gathers that compute covers, after a first one of 1 in 40 ms."""
    m = measured(
        draw(
            """
            all_gather  0....1111...............................
            wait        0.......................................
            forward     .0000000000000000000.1111111111111111111
        """,
            CUDA,
        )
    )

    assert found(exposed_all_gather, m) == []


def test_the_first_of_a_step_is_information() -> None:
    """4 of 40 ms before anything ran: healthy, and said apart."""
    finding = only(
        exposed_all_gather,
        measured(
            draw(
                """
                all_gather  0000....................................
                wait        0000....................................
                forward     ....000000000000000000000000000000000000
            """,
                CUDA,
            )
        ),
    )

    assert finding.severity == Severity.INFO
    assert finding.cost_ns_per_step == 4 * MS
    assert finding.evidence["first_of_step"] is True
    assert codes(finding)[0].endswith("model.unshard(async_op=True)")


def test_little_here_and_little_there_is_named_together() -> None:
    """1 of 40 ms for the first gather and 1 for the other: 5 % have a finding."""
    finding = only(
        exposed_all_gather,
        measured(
            draw(
                """
                all_gather  0..................1....................
                wait        0..................1....................
                forward     .000000000000000000.11111111111111111111
            """,
                CUDA,
            )
        ),
    )

    assert (finding.severity, finding.cost_ns_per_step) == (Severity.INFO, 2 * MS)
    assert "1.00 ms of it for the step's first" in finding.summary


def test_a_late_rank_is_not_the_wires_fault() -> None:
    """Waiting for rank 1 is reported as information: FD401 judges it."""
    early = draw(
        """
        all_gather  0....111111...................
        wait        .....111111...................
        forward     .0000......1111111111111111111
    """,
        CUDA,
    )
    late = draw(
        """
        all_gather  0.........1...................
        wait        ..........1...................
        forward     .000000000.1111111111111111111
    """,
        CUDA,
        rank=1,
    )

    finding = only(exposed_all_gather, measured(early, late))

    assert finding.severity == Severity.INFO
    assert finding.units == ("layers.1",)
    assert finding.cost_ns_per_step == 3_500_000
    assert "a rank arrived late" in finding.summary
    assert [advice.text for advice in finding.advice] == [LATE]


def test_on_cpu_it_names_the_asynchronous_gather() -> None:
    """Gloo blocks: a warning at most, with the two calls that change it."""
    m = measured(draw(LATE_GATHERS), source="rehearsal")
    finding = only(exposed_all_gather, m)

    assert finding.severity == Severity.WARNING
    assert "on CPU an all-gather blocks by default" in finding.summary
    assert "model._set_unshard_async_op(True)" in codes(finding)[0]
    assert "set_modules_to_forward_prefetch" in codes(finding)[0]


def test_no_forward_prefetch_where_activations_are_recomputed() -> None:
    """A checkpointed model gets the reason instead of the chain."""
    m = measured(
        draw(
            LATE_GATHERS,
            CUDA,
            model=ModelSpec(wrapper="fsdp2", checkpoint="non_reentrant"),
        )
    )

    finding = only(exposed_all_gather, m)

    assert codes(finding) == []
    assert any("No forward prefetch" in advice.text for advice in finding.advice)


def test_a_torch_without_the_call_is_not_told_to_use_it() -> None:
    """Advice names only methods of the torch that ran."""
    m = measured(draw(LATE_GATHERS, CUDA), available=("unshard", "reshard"))

    assert codes(only(exposed_all_gather, m)) == []


def test_backward_offers_to_keep_units_gathered() -> None:
    """Unit 1's second gather is exposed; keeping it costs its 4 MiB."""
    m = measured(
        draw(
            """
            all_gather           01................
            forward              ..0011............
            backward_all_gather  ......1111........
            backward_wait        ......1111........
            backward             ..........11110000
        """,
            CUDA,
            units=(unit("layers.0"), unit("layers.1")),
        )
    )

    finding = only(exposed_all_gather, m)

    assert finding.phase == "backward"
    assert finding.units == ("layers.1",)
    assert "set_reshard_after_forward(False, recurse=False)" in codes(finding)[1]
    assert finding.advice[1].memory_cost_bytes == 4 << 20


def test_without_stalls_it_cannot_tell() -> None:
    """A source that shows neither waits nor kernels has no answer."""
    evidence = without(RECORDED, Evidence.STALLS)

    answer = not_judged(
        exposed_all_gather, measured(draw(LATE_GATHERS, evidence=evidence))
    )

    assert set(answer.needs) == {Evidence.STALLS, Evidence.KERNELS}
    assert answer.reason == (
        "not measured: this run does not show compute kernels, waits of the "
        "compute lane"
    )


def test_two_steps_are_too_few() -> None:
    """A record of two steps is warm-up, not a run."""
    answer = not_judged(exposed_all_gather, measured(draw(LATE_GATHERS, steps=2)))

    assert answer.needs == (Evidence.STEPS,)


def test_no_gather_hides_under_another_root_s_unit() -> None:
    """layers.1 under the 15 ms that layers.0 computes, and layers.2 of another model
    under nothing, though layers.1 ran before it.
    """
    units = (
        unit("layers.0"),
        unit("layers.1"),
        unit("layers.2 [tree=1]", tree=1, model=1),
    )
    spec = ModelSpec(wrapper="fsdp2", models=("Actor", "Critic"))
    data = draw(LATE_GATHERS, CUDA, units=units, model=spec)
    told = [
        finding.evidence["units"]
        for finding in found(exposed_all_gather, measured(data, source="rehearsal"))
        if "units" in finding.evidence
    ]
    rows = [row for rows in told if isinstance(rows, list) for row in rows]

    assert [
        (row["unit"], row["hide_under_ns"]) for row in rows if isinstance(row, dict)
    ] == [("layers.1", 15 * MS), ("layers.2 [tree=1]", None)]
