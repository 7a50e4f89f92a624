"""Findings of several models in one process name theirs."""

from __future__ import annotations

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.of_models import of_its_model
from fsdpdoctor.finding import Advice, Confidence, Finding, Severity
from fsdpdoctor.renderers.reading.unit_names import names_in
from fsdpdoctor.report import report_of
from fsdpdoctor.schema import ModelSpec
from fsdpdoctor.testing import draw, measured, unit

PICTURE = """
    forward   00........
    backward  ..00......
    forward   ....11....
"""
TWO = (unit("layers.0"), unit("layers.0 [tree=1]", tree=1, model=1))


def job(*models: str) -> Measures:
    """An actor that trains, and a critic beside it, whose names are the same."""
    spec = ModelSpec(wrapper="fsdp2", models=models)
    picture = PICTURE if len(models) > 1 else PICTURE.replace("11", "..")
    return measured(draw(picture, units=TWO[: len(models)], model=spec))


def finding(*units: str, says: str) -> Finding:
    """A finding of some units."""
    return Finding(
        severity=Severity.WARNING,
        confidence=Confidence.HIGH,
        summary=says,
        units=units,
        advice=(Advice(text="Look at layers.0 [tree=1]."),),
    )


def test_one_model_stands_in_front() -> None:
    """By its class and role; the tree's number is gone from what is read, and the
    units' names are as they were.
    """
    m = job("Actor", "Critic")
    one = of_its_model(finding("layers.0", says="layers.0 waits"), m)
    other = of_its_model(
        finding("layers.0 [tree=1]", says="layers.0 [tree=1] waits"), m
    )

    assert one.summary == "Actor, trained: layers.0 waits"
    assert other.summary == "Critic, not run: layers.0 waits"
    assert other.units == ("layers.0 [tree=1]",)
    assert other.advice[0].text == "Look at layers.0."


def test_several_models_are_told_by_unit() -> None:
    """As in a finding of both."""
    m = job("Actor", "Critic")
    both = of_its_model(
        finding(*(u.fqn for u in TWO), says="layers.0 [tree=1] waits, too"), m
    )
    report = report_of(m)
    names = [spec.fqn for spec in TWO]

    assert both.summary == "layers.0 of Critic waits, too"
    assert names_in(report).of_finding(names) == (
        "layers.0 of Actor and layers.0 of Critic"
    )
    assert names_in(report).of_finding(names[1:]) == "layers.0"


def test_one_model_alone_is_not_named() -> None:
    """Nor are its units, whatever their names."""
    m = job("Actor")
    one = finding("layers.0", says="layers.0 waits")

    assert of_its_model(one, m) == one
