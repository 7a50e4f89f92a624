"""Each kind of script, plain and recorded: the same output, and exact counts.

What FSDP2 issues is counted beside the recorder, at FSDP2's own functions, in the same
process. `pytest -m frameworks` writes a table beside the benchmarks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fsdpdoctor.run import open_run
from tests.frameworks.counts import counted, recorded_by, whole
from tests.frameworks.kinds import KINDS, Kind
from tests.frameworks.results import write
from tests.rig.forked import Ended, Job, Pool, pool
from tests.rig.selected import selected

pytestmark = [pytest.mark.frameworks, pytest.mark.ranks]

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A script's two runs, under way."""

    plain: Future[Ended]
    ours: Future[Ended]
    run: Path


@pytest.fixture(scope="module")
def pairs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[Kind, Pair]]:
    """Both runs of all scripts that were selected, some beside each other."""
    kinds: list[Kind] = selected(request, "kind")
    with pool() as ranks:
        yield {kind: start(ranks, kind, tmp_path_factory) for kind in kinds}


def start(ranks: Pool, kind: Kind, folders: pytest.TempPathFactory) -> Pair:
    """The script as it is, and recorded."""
    folder = folders.mktemp(str(kind))
    job = Job(
        script=str(SCRIPTS / f"{kind.script}.py"),
        argv=(kind.way,),
        ranks=kind.ranks,
        folder=str(folder / "plain"),
        counts=True,
    )
    run = folder / "run"
    recorded = replace(job, folder=str(folder / "ours"), run=str(run))
    return Pair(plain=ranks.submit(job), ours=ranks.submit(recorded), run=run)


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """A row for each script, written at the end where all have run."""
    rows: list[str] = []
    yield rows
    if len(rows) >= len(KINDS):
        write(
            "Scripts of frameworks' kinds",
            "Written by `pytest -m frameworks`: each script plain and recorded. "
            "Gathers and\nreductions are counted at FSDP2's own functions, apart from "
            "the recorder; per rank\nand whole run.\n\n"
            "| script | ranks | steps | micro-batches a step | gathers | reductions | "
            "output |\n|---|---|---|---|---|---|---|\n" + "\n".join(rows),
        )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_counts_and_output(
    kind: Kind, pairs: dict[Kind, Pair], table: list[str]
) -> None:
    """As counted apart from it, by rank, step and phase; and as without it."""
    pair = pairs[kind]
    plain, ours = pair.plain.result().ok(), pair.ours.result().ok()
    loaded = open_run(pair.run).load()

    assert ours.stdout == plain.stdout
    assert ours.counts == plain.counts
    for rank, text in zip(loaded, ours.counts, strict=True):
        ended = [step for step in rank.steps if step.complete]
        assert [step.step for step in ended] == list(range(kind.steps))
        total = sum(step.micro_batches for step in ended)
        assert total == round(kind.micro_batches * kind.steps)
        assert json.loads(text)["turns"] == kind.turns * kind.steps
        if kind.turns:
            assert recorded_by(rank) == counted(text, kind.turns)
        else:
            assert whole(recorded_by(rank)) == whole(counted(text, kind.turns))
    table.append(_row(kind, ours))  # what fails has no row


def _row(kind: Kind, ended: Ended) -> str:
    found = whole(counted(ended.counts[0], kind.turns))
    gathers = found["all_gather", "forward"] + found["all_gather", "backward"]
    return (
        f"| {kind} | {kind.ranks} | {kind.steps} | {kind.micro_batches:.3g} | "
        f"{gathers} | {found['reduce', 'backward']} | same |"
    )
