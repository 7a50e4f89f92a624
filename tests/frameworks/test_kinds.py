"""Each kind of script, plain and recorded: the same output, and exact counts.

What FSDP2 issues is counted beside the recorder, at FSDP2's own functions, in the same
process. `pytest -m frameworks` writes a table beside the benchmarks.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import Kind as Span
from fsdpdoctor.schema import Phase
from tests.frameworks.kinds import KINDS, Kind
from tests.rig.forked import Ended, Job, Pool, pool
from tests.rig.selected import selected

pytestmark = [pytest.mark.frameworks, pytest.mark.ranks]

SCRIPTS = Path(__file__).parent / "scripts"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "frameworks-results.md"

Counts = Counter[tuple[int, str, str]]
"""How many, by step, what and phase."""


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
        head = (
            "# Scripts of frameworks' kinds\n\nWritten by `pytest -m frameworks`: each "
            "script plain and recorded. Gathers and\nreductions are counted at FSDP2's "
            "own functions, apart from the recorder; per rank\nand whole run.\n\n"
            "| script | ranks | steps | micro-batches a step | gathers | reductions | "
            "output |\n|---|---|---|---|---|---|---|\n"
        )
        RESULTS.write_text(head + "\n".join(rows) + "\n", "utf-8")


def counted(kind: Kind, text: str) -> Counts:
    """What was counted beside the recorder, by step."""
    counts: Counts = Counter()
    for turn, what, _, phase, number in json.loads(text)["counts"]:
        at = turn // max(kind.turns, 1)
        counts[at, what, phase if what == "all_gather" else "backward"] += number
    return counts


def recorded_by(rank: RankData) -> Counts:
    """What the record has, by step."""
    counts: Counts = Counter()
    names = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward"}
    for step in rank.steps:
        spans = step.spans
        for unit, phase in zip(
            spans.unit[spans.kind == Span.ALL_GATHER],
            spans.phase[spans.kind == Span.ALL_GATHER],
            strict=True,
        ):
            if unit >= 0:
                counts[step.step, "all_gather", names[Phase(phase)]] += 1
        reductions = spans.kind == Span.REDUCE_SCATTER
        number = int((spans.unit[reductions] >= 0).sum())
        counts[step.step, "reduce", "backward"] += number
    return +counts


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
        whole = [step for step in rank.steps if step.complete]
        assert [step.step for step in whole] == list(range(kind.steps))
        total = sum(step.micro_batches for step in whole)
        assert total == round(kind.micro_batches * kind.steps)
        assert json.loads(text)["turns"] == kind.turns * kind.steps
        if kind.turns:
            assert recorded_by(rank) == counted(kind, text)
        else:
            assert _whole(recorded_by(rank)) == _whole(counted(kind, text))
    table.append(_row(kind, ours))  # what fails has no row


def _whole(counts: Counts) -> Counter[tuple[str, str]]:
    """Over all steps: where none of torch's optimizers tells them apart."""
    whole: Counter[tuple[str, str]] = Counter()
    for (_, what, phase), number in counts.items():
        whole[what, phase] += number
    return whole


def _row(kind: Kind, ended: Ended) -> str:
    whole = _whole(counted(kind, ended.counts[0]))
    gathers = whole["all_gather", "forward"] + whole["all_gather", "backward"]
    return (
        f"| {kind} | {kind.ranks} | {kind.steps} | {kind.micro_batches:.3g} | "
        f"{gathers} | {whole['reduce', 'backward']} | same |"
    )
