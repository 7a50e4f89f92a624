"""Without names: the same figures, and none of the words of whoever trained."""

from __future__ import annotations

from fsdpdoctor.finding import Advice
from fsdpdoctor.renderers.reading.anonymous import HIDDEN, Stand, anonymous, stand_for
from fsdpdoctor.renderers.reading.unit_names import names_in
from fsdpdoctor.report import Report, report_of
from fsdpdoctor.report.value import StoppedRank, encode
from fsdpdoctor.storage.json_value import replace
from tests.detectors.test_of_models import job
from tests.renderers.test_renderers import finding, report_with


def named() -> Report:
    """A report full of names."""
    names = ("acme.layers.0.secretmixer", "acme.layers.1.secretmixer")
    report = report_with(*names, findings=(finding(names[0], "of it"),))
    row = report.findings[0]
    told = replace(
        row,
        units=("acme.layers.0.secretmixer",),
        summary="acme.layers.[0-1].secretmixer waits at /home/jo/acme/train.py:43",
        evidence={"seen": "secretmixer"},
        advice=(Advice(text="do", code="wrap(acme.layers, secretmixer)"),),
    )
    stopped = StoppedRank(rank=1, ended="exception: KeyError: 'acme hunter2'")
    return replace(
        report,
        run=replace(report.run, command=("train.py", "--key", "acme")),
        findings=(told,),
        health=replace(report.health, stopped=(stopped,), warnings=("of acme",)),
    )


def test_no_name_is_left() -> None:
    """Not of modules, files, hosts, commands, nor in what errors say."""
    report = named()
    text = encode(anonymous(report, stand_for(report)))

    found = [w for w in ("acme", "secretmixer", "jo/", "hunter2") if w in text.lower()]
    assert found == []
    assert f"KeyError: {HIDDEN}" in text


def test_the_same_name_has_the_same_place() -> None:
    """Units, findings and code still speak of the same; figures stay."""
    report = named()
    hidden = anonymous(report, stand_for(report))

    assert hidden.units[0].unit == "part1.layers.0.part2"
    assert hidden.findings[0].units == ("part1.layers.0.part2",)
    assert hidden.findings[0].summary.startswith("part1.layers.[0-1].part2 waits at ")
    assert hidden.step_time_ns == report.step_time_ns
    assert hidden.budget_ns_per_step == report.budget_ns_per_step
    assert hidden.findings[0].cost_ns_per_step == report.findings[0].cost_ns_per_step


def test_without_names_there_is_nothing_to_replace() -> None:
    """Words stay as they are."""
    stand = Stand(["model.layers.0"], [])
    words = "layers.0 of the model waits 3 ms"

    assert stand(words) == words


def test_what_tells_units_of_one_name_apart_is_no_name() -> None:
    """Else it would be read as one; models have places as modules have."""
    m = job("AcmeActor", "AcmeCritic")
    report = report_of(m)
    hidden = anonymous(report, stand_for(report))

    assert [row.unit for row in hidden.units] == ["layers.0", "layers.0 [tree=1]"]
    assert [row.name for row in hidden.models] == ["part1", "part2"]
    assert names_in(hidden)("layers.0 [tree=1]") == "layers.0 of part2"
    assert Stand(["tree.0 [pg=2]"], [])("tree.0 [pg=2]") == "part1.0 [pg=2]"
