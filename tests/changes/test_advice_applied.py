"""Every piece of advice, applied to the script it was given for, as it says.

The script runs, losses stay what they must, and the finding is gone or the gain that
was predicted is there. Time is virtual and the network modelled, so all is exact.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fsdpdoctor.advice import recommend
from fsdpdoctor.analysis.measures import Measures, measure
from fsdpdoctor.changes.code import code
from fsdpdoctor.changes.frameworks import DIALECTS, snippets
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.finding import Advice, Finding
from fsdpdoctor.run import open_run
from fsdpdoctor.simulate.plans.forecast import replay_run
from fsdpdoctor.simulate.plans.plan_code import tree_of
from fsdpdoctor.simulate.plans.predict import Prediction, Replay
from fsdpdoctor.simulate.plans.search import search
from tests.changes.kinds import SCRIPTS
from tests.changes.scripts import Outcome, Script, run
from tests.changes.trainers import TRAINERS, Given
from tests.rig.changed import replace

pytestmark = [
    # torch's own, where hooks meet its compiler or its checkpoints.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

QUICK = (
    "bf16",
    "two roots",
    "one unit, fast, hsdp",
    "tied",
    "lora",
    "skipping lists, async",
    "own optimizer, early",
    "slow optimizer of one's own",
)
"""One of each kind; the others take minutes together."""

LEARNS = {
    "FD504": "the optimizer steps over nothing until it is built anew",
    "FD502": "it computes in another dtype, as the advice says",
    "FD204": "columns are not what the modelled network repeats: rows are",
    "FD301 evaluation": "a root that stays gathered computes with old weights",
}
"""Advice after which losses are not what they were, and why that is right."""

SLEEPS = "FD404"
"""Its cost is a sleep here, which no other optimizer step shortens."""


OF_SOME_UNITS = ("FD301",)
"""Said of some units and not of others, each with advice of its own."""


def slow_but(quick: tuple[str, ...]) -> list[Any]:
    """All scripts by name; those that are not quick are marked."""
    return [
        name if name in quick else pytest.param(name, marks=pytest.mark.slow)
        for name in SCRIPTS
    ]


def judged(folder: Path) -> tuple[Measures, tuple[Finding, ...]]:
    """What is found in a run, with advice that was held against the simulator."""
    recorded = open_run(folder)
    m = measure(recorded)
    findings, _ = judge_all(m)
    return m, recommend(recorded, m, findings).findings


def median_ns(m: Measures) -> int:
    """Of the judged steps."""
    assert m.median_step_ns is not None
    return m.median_step_ns


def kind_of(finding: Finding, advice: Advice) -> str:
    """A finding's code, with what is said where a code says several things."""
    if finding.code == "FD301" and "evaluation" in (advice.code or ""):
        return "FD301 evaluation"
    return finding.code


def check_losses(kind: str, before: Outcome, after: Outcome) -> None:
    """The same to the bit, or from the first step on where that is right."""
    if kind not in LEARNS:
        assert after.losses == before.losses
        assert after.dtypes == before.dtypes
    elif kind == "FD502":
        assert after.losses == pytest.approx(before.losses, rel=0.01)
        assert after.dtypes == {(torch.bfloat16, torch.float32)}
    elif kind != "FD204":
        assert after.losses[0] == before.losses[0]
        assert after.losses != before.losses


@pytest.mark.parametrize("name", slow_but(QUICK))
def test_every_piece_of_advice(name: str, tmp_path: Path) -> None:
    """Applied alone, each to the script as it was."""
    script = SCRIPTS[name]
    before = run(script, tmp_path / "before")
    m, findings = judged(tmp_path / "before")
    tried: set[str] = set()
    for finding in findings:
        for advice in finding.advice:
            if advice.code is None or advice.code in tried:
                continue
            tried.add(advice.code)
            folder = tmp_path / str(len(tried))
            after = run(script, folder, advice.code)
            check_losses(kind_of(finding, advice), before, after)
            check_gain(finding, advice, m, *judged(folder))


def check_gain(
    finding: Finding,
    advice: Advice,
    before: Measures,
    after: Measures,
    findings: tuple[Finding, ...],
) -> None:
    """The gain that was predicted; where none was, gone, milder or cheaper."""
    gain_ns = median_ns(before) - median_ns(after)
    if advice.predicted_gain_ns is not None:
        assert advice.predicted_error_ns is not None
        assert gain_ns > 0
        off = abs(gain_ns - advice.predicted_gain_ns)
        assert off <= advice.predicted_error_ns
        return
    if finding.code == SLEEPS:
        return
    same = (finding.code, finding.phase, finding.severity)  # milder: memory, perhaps
    left = [f for f in findings if (f.code, f.phase, f.severity) == same]
    if finding.code in OF_SOME_UNITS:
        left = [f for f in left if {*f.units} & {*finding.units}]
    cost = max((f.cost_ns_per_step or 0 for f in left), default=0)
    assert not left or cost < (finding.cost_ns_per_step or 0)


def test_tied_and_foreign_optimizers_get_no_code(tmp_path: Path) -> None:
    """`fully_shard` of a part of tied tables raises, and so does an unknown `fused`."""
    run(SCRIPTS["tied"], tmp_path / "tied")
    run(SCRIPTS["slow optimizer of one's own"], tmp_path / "own")
    found = [*judged(tmp_path / "tied")[1], *judged(tmp_path / "own")[1]]
    said = {f.code: f.advice for f in found if f.code in ("FD203", "FD404")}

    assert {code: [a.code for a in advice] for code, advice in said.items()} == {
        "FD203": [None],
        "FD404": [None],
    }


@pytest.mark.slow
def test_the_cure_for_lists_that_run_again(tmp_path: Path) -> None:
    """`use_reentrant=False`, as said: nothing is gathered twice, lists as they are."""
    run(SCRIPTS["reentrant, listed"], tmp_path / "before")
    run(SCRIPTS["not reentrant, listed"], tmp_path / "after")
    (twice,) = [f for f in judged(tmp_path / "before")[1] if f.code == "FD107"]

    assert any("use_reentrant=False" in a.text for a in twice.advice)
    assert not any("Clear" in a.text for a in twice.advice)
    assert "FD107" not in {f.code for f in judged(tmp_path / "after")[1]}


# -- what-if


def applied(
    dialect: str,
    base: Replay,
    prediction: Prediction,
    script: Script,
    folder: Path,
    patch: pytest.MonkeyPatch,
) -> Outcome:
    """A prediction's code, each part where it says, in one dialect."""
    known = base.calibration
    before = tree_of(known.step, known.constraints)
    after = tree_of(prediction.step, known.constraints)
    plan = prediction.plan
    if plan.accumulation is not None:
        plan = replace(plan, micro_batches=script.micro_batches)
    parts = snippets(dialect, plan, before, after, known.constraints.blocks)
    if dialect == "fully_shard":
        return run(script, folder, "".join(part.text for part in parts))

    def shard(model: Any) -> None:
        options = script.options()
        mesh = options.get("mesh")
        given = Given(
            units=[paths for paths, _ in script.calls if paths != ("",)],
            ranks=script.world_size,
            replicate=1 if mesh is None else mesh.size(0),
            policy=options.get("mp_policy"),
        )
        TRAINERS[dialect](patch, model, parts, given)

    # Whoever sets the flags of accumulation, FSDP2 gets the same.
    flags = Plan(accumulation=plan.accumulation, micro_batches=plan.micro_batches)
    return run(script, folder, code(flags, after, after), shard=shard)


WHAT_IF = ("blocks", "bf16", "hsdp", "fine, bf16", "nested", "accumulation, hsdp")

QUICK_PAIRS = (("bf16", "fully_shard"), ("hsdp", "lightning"))

PAIRS = [
    pytest.param(
        name,
        dialect,
        marks=[] if (name, dialect) in QUICK_PAIRS else [pytest.mark.slow],
    )
    for name in WHAT_IF
    for dialect in DIALECTS
]


@pytest.mark.parametrize(("name", "dialect"), PAIRS)
def test_what_a_search_finds(
    name: str, dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change on the front, in each dialect: the step is what was predicted."""
    script = SCRIPTS[name]
    before = run(script, tmp_path / "before")
    recorded = open_run(tmp_path / "before")
    base = replay_run(recorded, measure(recorded))
    front = search(base)

    assert front
    for at, prediction in enumerate(front):
        folder = tmp_path / str(at)
        after = applied(dialect, base, prediction, script, folder, monkeypatch)
        m = measure(open_run(folder))
        assert after.losses == before.losses, str(prediction.plan)
        assert after.dtypes == before.dtypes, str(prediction.plan)
        off = abs(median_ns(m) - prediction.step_ns)
        assert off <= prediction.error_ns, str(prediction.plan)
