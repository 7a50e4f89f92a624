"""Every torch that is noted has what the recorder asks for; one that lacks a name loses
what needs it, and nothing else.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.recorder.fsdp2 import internals
from fsdpdoctor.recorder.fsdp2.signals import SIGNALS, hooks_of, lacking
from fsdpdoctor.recorder.fsdp2.signatures import Signatures, installed, signatures_of
from fsdpdoctor.run import open_run
from fsdpdoctor.schema import Evidence, Kind
from tests.recorder.rehearsed import recorded, sharded, train

NOTED = sorted(Path(__file__).with_name("signatures").glob("torch-*.json"))
NEEDS = sorted({need for one in SIGNALS for need in (*one.hooks, *one.needs)})


def noted(path: Path) -> Signatures:
    """What `python -m tests.recorder.fsdp2.signatures` wrote of a wheel."""
    return {name: tuple(given) for name, given in json.loads(path.read_text()).items()}


@pytest.mark.parametrize("path", NOTED, ids=lambda path: path.stem)
def test_each_noted_torch_has_every_name(path: Path) -> None:
    """Nothing of FSDP2 goes unrecorded with it."""
    assert [lack.words for lack in lacking(noted(path))] == []


def test_the_installed_torch_has_every_name() -> None:
    """Where a newer one lacks something, this says what, and of which signal."""
    assert [lack.words for lack in lacking(installed())] == []


def test_these_versions_are_noted() -> None:
    """From the oldest that was tried to the newest there was."""
    versions = [path.stem.removeprefix("torch-").split("+")[0] for path in NOTED]
    assert versions == ["2.11.0", "2.13.0", "2.14.1", "2.15.0", "2.7.1", "2.9.1"]


@pytest.mark.parametrize("need", NEEDS)
def test_a_missing_name_costs_what_needs_it(need: str) -> None:
    """Whichever it is: the signals that name it, in words with its name."""
    there = dict(installed())
    for one in need.split("|"):
        there.pop(one.partition("(")[0], None)
    # A function whose parameters are asked for, too, is missing altogether.
    lost = {
        other
        for other in NEEDS
        if not any(one.partition("(")[0] in there for one in other.split("|"))
    }
    lacks = lacking(there)

    assert need in lost
    assert {lack.signal.words for lack in lacks} == {
        one.words for one in SIGNALS if lost & {*one.hooks, *one.needs}
    }
    assert all(lack.names[0].split("|")[0] in lack.words for lack in lacks)


def test_other_parameters_are_another_function() -> None:
    """What is found by its place among them would be something else."""
    there = {**installed(), "foreach_reduce": ("unsharded_grads", "fsdp_params")}
    (lack,) = lacking(there)

    assert lack.signal.words == "reduce-scatters and all-reduces of gradients"
    assert hooks_of([lack]) == {"foreach_reduce"}


def test_a_torch_without_sources_is_taken_as_it_is() -> None:
    """Then only what is on its classes is looked for."""
    assert lacking({}) == ()


def less(*names: str) -> Signatures:
    """The installed torch, as if it had no such names."""
    return {name: given for name, given in installed().items() if name not in names}


def test_training_goes_on_with_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One signal is missing in the record, which says so; the others are there."""
    missing = less("FSDPParam.all_gather_outputs")
    with monkeypatch.context() as patch:
        patch.setattr(internals, "installed", lambda: missing)
        with recorded(tmp_path):
            train(sharded())
    data = open_run(tmp_path).sources[0].load()
    kinds = {int(kind) for step in data.steps for kind in step.spans.kind}

    assert data.header.ended == "done"
    (said,) = data.header.warnings
    assert said == (
        "not recorded: how long units are unsharded: this torch has no "
        "FSDPParam.all_gather_outputs"
    )
    assert Evidence.WINDOWS not in data.header.evidence
    assert Evidence.COLLECTIVES in data.header.evidence
    assert {Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.FORWARD} <= kinds
    assert Kind.UNSHARDED not in kinds


def test_without_the_units_only_steps_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A unit that cannot be described would be a guess."""
    missing = less("FSDPParamGroup._module_fqn")
    with monkeypatch.context() as patch:
        patch.setattr(internals, "installed", lambda: missing)
        with recorded(tmp_path):
            train(sharded())
    header = open_run(tmp_path).sources[0].load().header

    assert (header.ended, header.units) == ("done", ())
    assert "this torch has no FSDPParamGroup._module_fqn" in header.warnings[0]
    assert header.warnings[1].endswith("steps and host events only")


SOURCES = {
    "one": "from x import two\nclass A(B):\n    kept: int = 0\n"
    "    def __init__(self, a, *, b):\n        self.given = a\n"
    "class B:\n    def method(self, x, y=1): ...\n",
    "other": "def two(first, second): ...\nLIST = []\n",
    "broken": "def (:",
}


def test_names_are_read_from_sources() -> None:
    """Functions and methods with their parameters, attributes, what is inherited."""
    assert signatures_of(SOURCES) == {
        "two": ("first", "second"),
        "LIST": (),
        "A": (),
        "A.__init__": ("self", "a"),
        "A.kept": (),
        "A.given": (),
        "A.method": ("self", "x", "y"),
        "B": (),
        "B.method": ("self", "x", "y"),
    }


def test_env_says_what_is_recorded_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each signal with yes or no, and the reason."""
    missing = less("FSDPState._root_post_backward_final_callback")
    with monkeypatch.context() as patch:
        patch.setattr(internals, "installed", lambda: missing)
        text = CliRunner().invoke(main, ["env"]).stdout.splitlines()
        said = json.loads(CliRunner().invoke(main, ["env", "--json"]).stdout)

    assert "  yes  all-gathers" in text
    assert (
        "  no   where backward ends: this torch has no "
        "FSDPState._root_post_backward_final_callback"
    ) in text
    assert said["facts"]["torch"] in next(line for line in text if "torch" in line)
    recorded_here = {one["what"]: one["can"] for one in said["recorded"]}
    not_here = next(what for what, can in recorded_here.items() if not can)
    assert not_here == "where backward ends"
    assert len(recorded_here) == len(said["recorded"]) == len(SIGNALS) + 7


def test_env_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be recorded, and that is no error."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["env"])

    assert done.exit_code == 0
    assert "recorded here: nothing: recording needs torch" in done.stdout
