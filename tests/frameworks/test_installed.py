"""Frameworks as they are, where they are installed: what a user calls a step is one.

Gathers and reductions are counted at FSDP2's own functions in the same processes, apart
from the recorder. Advice is pasted where it says, in the framework's own words.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.changes.frameworks import snippets
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.changes.snippet import Snippet
from fsdpdoctor.run import Run, open_run
from fsdpdoctor.schema import Kind, Phase, Spans
from fsdpdoctor.simulate.plans.change_step import changed
from fsdpdoctor.simulate.plans.forecast import replay_run
from fsdpdoctor.simulate.plans.plan_code import tree_of
from tests.frameworks.counts import counted, recorded_by, whole
from tests.frameworks.programs import INSTALLED, PROGRAMS, RANKS, Program
from tests.frameworks.results import kept, write
from tests.rig.ranks import ROOT

pytestmark = [pytest.mark.frameworks, pytest.mark.ranks]

RECORDED = ("-m", "fsdpdoctor", "run", "--no-report", "--out")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of one run of a program."""

    losses: list[str]
    counts: list[str]


def run(
    program: Program,
    folder: Path,
    *,
    record: Path | None = None,
    flags: Sequence[str] = (),
    pasted: Path | None = None,
) -> Ran:
    """Start it as its users do."""
    counts = folder / "counts"
    counts.mkdir(parents=True)
    if not (folder / "accelerate.yaml").exists():  # changed by advice
        program.files(folder)
    ours = () if record is None else (*RECORDED, str(record))
    command = [
        part.replace("{folder}", str(folder))
        for part in (*program.launch, *ours, *program.target, *flags)
    ]
    path = [str(PROGRAMS), str(ROOT), os.environ.get("PYTHONPATH", "")]
    given = {} if pasted is None else {"PASTE": str(pasted)}
    if program.dialect == "torchtitan" and pasted is not None:
        given = {"PASTED": str(pasted)}
    env = {
        **os.environ,
        **given,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "COUNTS": str(counts),
        "STAND_IN": program.stand_in,
    }
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    text = re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr)
    return Ran(
        losses=[str(found) for found in re.findall(program.losses, text, re.MULTILINE)],
        counts=[(counts / f"{rank}.json").read_text("utf-8") for rank in range(RANKS)],
    )


def missing(program: Program) -> list[str]:
    """What of its packages is not installed."""
    return [one for one in program.needs if importlib.util.find_spec(one) is None]


@pytest.fixture(scope="module", params=INSTALLED, ids=str)
def program(request: pytest.FixtureRequest) -> Program:
    """Each that is installed."""
    found: Program = request.param
    if lacks := missing(found):
        pytest.skip(f"not installed: {', '.join(lacks)}")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Both:
    """A program as it is and recorded."""

    plain: Ran
    ours: Ran
    record: Path


@pytest.fixture(scope="module")
def both(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Once each."""
    folder = tmp_path_factory.mktemp(program.name)
    return Both(
        plain=run(program, folder / "plain"),
        ours=run(program, folder / "ours", record=folder / "run"),
        record=folder / "run",
    )


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, str]]:
    """A row for each that ran; of the others what an earlier run has written, since
    not all of them can be installed together.
    """
    rows: dict[str, str] = {}
    yield rows
    if rows:
        write(
            "Frameworks, unmodified",
            "Written by `pytest -m frameworks` for those that are installed: each "
            "program plain\nand recorded, on two ranks of gloo, losses the same to the "
            "bit. Gathers and reductions\nare counted at FSDP2's own functions; per "
            "rank and whole run.\n\n"
            "| program | versions | steps | micro-batches a step | gathers | "
            "reductions |\n|---|---|---|---|---|---|\n"
            + "\n".join(kept([one.name for one in INSTALLED], rows)),
        )


def test_steps_counts_and_losses(
    program: Program, both: Both, table: dict[str, str]
) -> None:
    """As counted apart from it, by rank, step and phase; and as without it."""
    assert len(both.plain.losses) >= program.steps
    assert both.ours.losses == both.plain.losses
    assert both.ours.counts == both.plain.counts
    for rank, text in zip(open_run(both.record).load(), both.ours.counts, strict=True):
        ended = [step for step in rank.steps if step.complete]
        assert len(ended) == program.steps
        batches = [step.micro_batches for step in ended]
        assert batches == [program.micro_batches] * program.steps
        assert json.loads(text)["turns"] == program.steps
        assert recorded_by(rank) == counted(text)
    found = whole(counted(both.ours.counts[0]))
    gathers = found["all_gather", "forward"] + found["all_gather", "backward"]
    versions = ", ".join(
        f"{one} {importlib.metadata.version(one)}" for one in program.needs
    )
    table[program.name] = (
        f"| {program} | {versions} | {program.steps} | {program.micro_batches} | "
        f"{gathers} | {found['reduce', 'backward']} |"
    )


PLANS = {
    "keep": Plan(reshard_after_forward={"*": False}),
    "merge": Plan(merge=3),
    "prefetch": Plan(forward_prefetch=1, unshard_async_op=True),
}


def planned(recorded: Run, plan: Plan, dialect: str) -> tuple[list[Snippet], set[str]]:
    """Where code goes, and the units that it is to come to."""
    known = replay_run(recorded, measure(recorded)).calibration
    made = changed(plan, known.step, known.constraints).step
    before = tree_of(known.step, known.constraints)
    after = tree_of(made, known.constraints)
    found = snippets(dialect, plan, before, after, known.constraints.blocks)
    return found, {unit.fqn for unit in after.units}


@pytest.mark.parametrize("name", PLANS)
def test_advice_pasted(program: Program, both: Both, name: str, tmp_path: Path) -> None:
    """It runs, trains as before, and FSDP2 does what was planned."""
    if not program.dialect:
        pytest.skip("what-if has no words for it")
    found, units = planned(open_run(both.record), PLANS[name], program.dialect)
    assert found
    flags, pasted = paste(program, found, tmp_path)
    record = tmp_path / "run"
    after = run(program, tmp_path, record=record, flags=flags, pasted=pasted)

    assert after.losses == both.plain.losses
    for rank in open_run(record).load():
        assert {unit.fqn for unit in rank.header.units} == units
        again = {
            rank.header.units[unit].fqn
            for step in rank.steps
            for unit in step.spans.unit[gathered_again(step.spans)].tolist()
        }
        specs = [
            unit
            for unit in rank.header.units
            if not unit.is_root and unit.fqn not in program.resharded
        ]
        if name == "keep":
            assert again <= {*program.resharded}
            assert {unit.reshard_after_forward for unit in specs} == {False}
        if name == "prefetch":
            assert sum(bool(unit.forward_prefetch) for unit in specs) >= len(specs) - 1


def gathered_again(spans: Spans) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """FSDP2's gathers for a backward."""
    gathers = (spans.kind == Kind.ALL_GATHER) & (spans.unit >= 0)
    found: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    found = gathers & (spans.phase == Phase.BACKWARD)
    return found


def paste(
    program: Program, found: list[Snippet], folder: Path
) -> tuple[list[str], Path]:
    """Each part where it says: flags, keys of a file, and what Python is where."""
    pasted = folder / "pasted"
    pasted.mkdir()
    flags: list[str] = []
    texts: dict[str, str] = {}
    for snippet in found:
        where = snippet.where
        if where.startswith("on the command line"):
            flags += snippet.text.split()
        elif where.startswith("in the file"):
            program.files(folder)
            path = folder / "accelerate.yaml"
            keys = yaml.safe_load(path.read_text("utf-8"))
            keys["fsdp_config"] |= yaml.safe_load(snippet.text)["fsdp_config"]
            path.write_text(yaml.safe_dump(keys), "utf-8")
        else:
            place = "before" if where.startswith("before") else "after"
            texts["instead" if "in place of" in where else place] = snippet.text
    if program.dialect == "torchtitan":
        _into_torchtitan(texts, pasted)
        return flags, pasted
    for name, text in texts.items():
        (pasted / name).write_text(text, "utf-8")
    return flags, pasted


def _into_torchtitan(texts: dict[str, str], pasted: Path) -> None:
    """Its own file, with lines before and after its call."""
    name = "torchtitan.models.llama3.parallelize"
    spec = importlib.util.find_spec("torchtitan")  # the module itself imports much
    assert spec is not None
    assert spec.origin is not None
    home = Path(spec.origin).parent
    source = (home / "models" / "llama3" / "parallelize.py").read_text("utf-8")
    call, end = "    apply_fsdp_to_decoder(\n", "    return model\n"
    assert source.count(call) == source.count(end) == 1

    def lines(which: str) -> str:
        text = texts.get(which, "")
        return "".join(f"    {line}\n" for line in text.splitlines())

    source = source.replace(call, lines("before") + call)
    source = source.replace(end, lines("after") + end)
    (pasted / f"{name}.py").write_text(source, "utf-8")
