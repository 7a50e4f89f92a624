"""What a unit is called, where several models have units of one name."""

from __future__ import annotations

from fsdpdoctor.renderers.reading.unit_names import (
    UnitNames,
    by_model,
    names_in,
    names_on,
)
from fsdpdoctor.report import report_of
from tests.detectors.test_of_models import job

TWO = UnitNames(
    model_of={
        "layers.0": "Actor",
        "layers.1": "Actor",
        "layers.0 [tree=1]": "Critic",
        "layers.1 [tree=1] #2": "Critic",
    }
)


def test_a_unit_is_of_a_model() -> None:
    """Among all; alone with those of its model it has its own name."""
    assert [TWO(name) for name in TWO.model_of] == [
        "layers.0 of Actor",
        "layers.1 of Actor",
        "layers.0 of Critic",
        "layers.1 #2 of Critic",
    ]
    assert TWO.within("layers.0 [tree=1]") == "layers.0"


def test_a_unit_that_is_in_no_report_has_no_tree_either() -> None:
    """Such as one that a what-if merges: what is known of its model is said."""
    assert TWO("layers.0 [tree=1], layers.7") == "layers.0 of Critic, layers.7"
    assert TWO("layers.9 [tree=4]") == "layers.9"


def test_siblings_of_a_model_stand_together() -> None:
    """Each model's for themselves; where a finding is of one, its summary has it."""
    every = [*TWO.model_of]

    assert TWO.listed(every[:3]) == "layers.[0-1] of Actor and layers.0 of Critic"
    assert TWO.listed(every[2:3]) == "layers.0 of Critic"
    assert TWO.of_finding(every[:3]) == TWO.listed(every[:3])
    assert TWO.of_finding(every[2:3]) == "layers.0"
    assert (TWO.model(every[:2]), TWO.model(every), TWO.model(())) == (
        "Actor",
        None,
        None,
    )


def test_sentences_name_units_alike() -> None:
    """By the tree in the name, which is of one model."""
    assert TWO.words("one was changed: 0 [tree=1], 1") == (
        "one was changed: 0 of Critic, 1"
    )


def test_names_of_a_single_model_are_as_they_are() -> None:
    """Whatever they look like: nobody knows of which model else they would be."""
    names = names_in(report_of(job("Actor")))

    assert names == UnitNames()
    assert names("0 [tree=1]") == names.within("0 [tree=1]") == "0 [tree=1]"
    assert names.words("0 [tree=1]") == "0 [tree=1]"
    assert names.listed(["a.0", "a.1"]) == names.of_finding(["a.0", "a.1"]) == "a.[0-1]"
    assert names.model(["a.0"]) is None


def test_two_runs_beside_each_other_have_all_names() -> None:
    """What is in both is called as in the first."""
    other = UnitNames(model_of={"layers.0": "Policy", "head": "Policy"})
    both = TWO.beside(other)

    assert (both("layers.0"), both("head")) == ("layers.0 of Actor", "head of Policy")
    assert UnitNames().beside(TWO)("layers.0 [tree=1]") == "layers.0 of Critic"


def test_a_record_and_its_report_say_the_same() -> None:
    """A timeline is drawn before there is a report; models of a class are numbered."""
    for models in (("Actor", "Critic"), ("Net", "Net"), ("Actor",)):
        m = job(*models)
        assert names_on(m.ranks[0]) == names_in(report_of(m))
    assert names_on(job("Net", "Net").ranks[0])("layers.0 [tree=1]") == (
        "layers.0 of Net #2"
    )


def test_hostile_names_are_seen() -> None:
    """Of units and of models."""
    names = UnitNames(model_of={"a\u202eb": "C\u202e", "a [tree=1]": "D"})

    assert names("a\u202eb") == "a\\u202eb of C\\u202e"
    assert names.listed(["a\u202eb"]) == names("a\u202eb")


def test_units_are_parted_by_model() -> None:
    """Each under its model's name and role; of one model all, under nothing."""
    two, one = report_of(job("Actor", "Critic")), report_of(job("Actor"))

    assert [
        (model, [row.unit for row in rows])
        for model, rows in by_model(two.units, two.models)
    ] == [
        ("Actor, trained", ["layers.0"]),
        ("Critic, not run", ["layers.0 [tree=1]"]),
    ]
    assert [*by_model(one.units, one.models)] == [(None, [*one.units])]
