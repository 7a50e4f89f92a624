"""Passes without gradients: counted, named, and kept out of training's figures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.no_grad import (
    NoGrad,
    by_model,
    model_name,
    no_grad_passes,
    trained_models,
)
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import Flag, Kind, Spans
from fsdpdoctor.testing import draw, measured, unit

PICTURE = """
    eval_root_forward  0000.0000...........
    eval_all_gather    00...00.............
    eval_wait          00...00.............
    eval_forward       ..00...00...........
    all_gather         ..........00........
    wait               ..........00........
    forward            ............00......
    backward           ................00..
"""


def changed(data: RankData, **columns: object) -> RankData:
    """The same passes without gradients, with other columns."""

    def of(spans: Spans) -> Spans:
        passes = spans.kind == Kind.ROOT_FORWARD
        given = {name: getattr(spans, name).copy() for name in Spans.columns()}
        for name, value in columns.items():
            given[name][passes] = value
        return Spans(**given)

    steps = tuple(replace(step, spans=of(step.spans)) for step in data.steps)
    return replace(data, steps=steps)


def the(m: Measures) -> NoGrad:
    """The only line there is."""
    (row,) = no_grad_passes(m)
    return row


def test_counts_and_costs_of_their_own() -> None:
    """Two passes in each of six steps, 4 ms each, half of it waiting."""
    m = measured(draw(PICTURE))
    row = the(m)

    assert (row.passes, row.steps, row.all_gathers) == (12, 6, 12)
    assert (row.ns, row.exposed_ns) == (6 * 8 * MS, 6 * 4 * MS)
    assert row.repeated
    assert m.exposed_ns_per_step(Kind.ALL_GATHER) == 2 * MS
    budget = m.budget_ns_per_step()
    assert budget["no_grad"] == 8 * MS
    assert budget["exposed_all_gather"] == 2 * MS
    assert budget["forward"] == 2 * MS


def test_what_a_pass_waits_before_it_begins_is_its_own() -> None:
    """The root is gathered before its forward: 2 ms of the pass, not of training."""
    picture = PICTURE.replace("root_forward  0000", "root_forward  ..00")
    m = measured(draw(picture))
    budget = m.budget_ns_per_step()

    assert budget["exposed_all_gather"] == m.exposed_ns_per_step(Kind.ALL_GATHER)
    assert budget["no_grad"] == 8 * MS


def test_own_compute_of_training_leaves_them_out() -> None:
    """2 ms of forward with gradients, 4 without."""
    times = measured(draw(PICTURE)).ranks[0].unit_times
    forward = times.rows(times.phase == 1)

    assert forward.compute_ns.tolist() == [2 * MS] * 6
    assert forward.eval_compute_ns.tolist() == [4 * MS] * 6


@pytest.mark.parametrize(
    ("said", "purpose"),
    [
        ("train.py:7", "loop"),
        ("train.py:7 rollout < main", "generation"),
        ("train.py:7 step < validate < fit", "evaluation"),
    ],
)
def test_named_by_the_functions_around_them(said: str, purpose: str) -> None:
    """The place is the line, the purpose what its functions are called."""
    row = the(measured(changed(draw(PICTURE, names=(said,)), name=0)))

    assert (row.where, row.purpose) == ("train.py:7", purpose)


def test_inputs_that_grow_are_generation() -> None:
    """By one token in each pass, or one token at a time."""
    picture = PICTURE.replace(
        "eval_root_forward  0000.0000", "eval_root_forward  0.0.0.0.0"
    )
    data = draw(picture)

    growing = changed(data, value=np.array([4, 5, 6, 7, 8]))
    cached = changed(data, value=np.array([4, 1, 1, 1, 1]))
    alike = changed(data, value=np.array([4, 4, 4, 4, 4]))

    found = [the(measured(one)).purpose for one in (growing, cached, alike)]
    assert found == ["generation", "generation", "loop"]


def test_evaluation_mode_or_few_steps_are_an_evaluation() -> None:
    """Of a model that trains."""
    data = changed(draw(PICTURE), flags=int(Flag.NO_GRAD | Flag.EVAL))
    assert the(measured(data)).purpose == "evaluation"

    without = draw(PICTURE.replace("eval_root_forward  0000.0000...........", ""))
    seldom = (*draw(PICTURE).steps[:2], *without.steps[2:])
    assert the(measured(replace(without, steps=seldom))).purpose == "evaluation"


def test_a_model_without_a_backward_never_trains() -> None:
    """It is a reference, whatever runs it."""
    units = (unit("0", model=0), unit("0 [tree=1]", tree=1, model=1))
    picture = PICTURE.replace(
        "forward            ............00", "forward ............11"
    )
    picture = picture.replace(
        "backward           ................00", "backward ................11"
    )
    m = measured(draw(picture, units=units))

    assert trained_models(m) == {1}
    assert (the(m).model, the(m).purpose) == (0, "reference")
    assert by_model(m, ["0 [tree=1]", "0"]) == [["0 [tree=1]"], ["0"]]


def test_models_of_one_class_are_numbered() -> None:
    """One alone keeps its name."""
    models = ("Net", "Critic", "Net")

    assert [model_name(models, n) for n in range(3)] == ["Net #1", "Critic", "Net #2"]
