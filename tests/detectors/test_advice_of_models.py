"""Advice for one of several models: code that says which, and runs on it."""

from __future__ import annotations

import pytest

from fsdpdoctor.detectors import judge_all
from fsdpdoctor.detectors.unit_order import tree_of_one
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import ModelSpec
from fsdpdoctor.testing import draw, measured, unit
from tests.detectors.pasted_code import run
from tests.detectors.test_advice_runs import AVAILABLE, EXPOSED, ROOT, SHARDED, UNITS
from tests.rig.changed import replace

BESIDE = unit("layers.0")


def beside_another(data: RankData, *names: str) -> RankData:
    """The same model as the second of a process, whose first has not run."""
    header = data.header
    mine = [
        replace(spec, fqn=f"{spec.fqn} [tree=1]", tree=1, model=1)
        for spec in header.units
    ]
    model = header.model or ModelSpec(wrapper="fsdp2")
    return replace(
        data,
        header=replace(
            header,
            units=(*mine, BESIDE),
            model=replace(model, models=names or ("Actor", "Critic")),
        ),
    )


@pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning",  # on a machine of few cores
    "ignore:.torch.jit.script_method:DeprecationWarning",  # the compiler's own
)
@pytest.mark.parametrize(
    "case",
    [case for case, data in SHARDED.items() if data.header.units],
)
def test_each_advice_for_one_model_runs_on_it(case: str, job: None) -> None:
    """Whatever says what `model` is says which one, and none is promised a gain, as no
    step of several models is simulated.
    """
    findings, _ = judge_all(
        measured(beside_another(SHARDED[case]), available=AVAILABLE)
    )
    whose = "# `model` is your Critic, one of 2 in this process."
    which = "# `model` is the root module of the model that "

    assert findings
    for finding in findings:
        for advice in finding.advice:
            assert advice.change is None
            if advice.code is not None:
                lines = advice.code.split("\n")
                said = [line for line in lines if "# `model` is" in line]
                assert all(line.startswith((whose, which)) for line in said)
                run(advice.code)


def test_the_first_advice_for_the_second_model() -> None:
    """Its own units alone, by their own names, in the order in which they ran."""
    m = measured(beside_another(draw(EXPOSED, units=UNITS)), available=AVAILABLE)
    findings, _ = judge_all(m)
    exposed = next(f for f in findings if f.code == "FD101" and f.phase == "forward")

    assert exposed.advice[0].code == (
        "# `model` is your Critic, one of 2 in this process.\n"
        "model._set_unshard_async_op(True)\n"
        "# Units in the order in which their forwards ran.\n"
        'order = ["layers.0", "layers.1", "layers.2"]\n'
        "units = [model] + [model.get_submodule(name) for name in order]\n"
        "for unit, following in zip(units, units[1:]):\n"
        "    unit.set_modules_to_forward_prefetch([following])"
    )


def test_units_of_two_models_have_no_tree_together() -> None:
    """Each by itself has; the one that is named is named by its class."""
    m = measured(beside_another(draw(EXPOSED, units=UNITS)))
    second = f"{ROOT.fqn} [tree=1]"
    one, other = tree_of_one(m, [second]), tree_of_one(m, [BESIDE.fqn])

    assert one is not None
    assert other is not None
    assert [unit.fqn for unit in one.units] == [f"{u.fqn} [tree=1]" for u in UNITS]
    assert one.called == "Critic, one of 2 in this process"
    assert [unit.fqn for unit in other.units] == [BESIDE.fqn]
    assert other.called == "Actor, one of 2 in this process"
    assert tree_of_one(m, [second, BESIDE.fqn]) is None
    assert tree_of_one(m, []) is None


def test_a_model_whose_class_is_hostile_stays_in_its_comment() -> None:
    """A name with a line's end in it is quoted."""
    hostile = "Critic\nimport this"
    data = beside_another(draw(EXPOSED, units=UNITS), "Actor", hostile)
    findings, _ = judge_all(measured(data, available=AVAILABLE))
    codes = [a.code for f in findings for a in f.advice if a.code is not None]

    assert any("Critic\\nimport this" in code for code in codes)
    assert not any("\nimport this" in code for code in codes)
