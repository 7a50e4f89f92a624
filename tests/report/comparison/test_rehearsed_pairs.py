"""Pairs of rehearsed trainings with one thing changed, and repeated ones with none.

A rehearsal's time is modelled, so that two of one script are alike to the nanosecond:
whatever is said to differ then is the comparison's own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fsdpdoctor.analysis.measures import measure
from fsdpdoctor.report import report_of
from fsdpdoctor.report.comparison import Subject, compare
from fsdpdoctor.run import open_run
from tests.rig.changed import replace
from tests.rig.virtual_device import Job, record

REPEATS = 20

PLAIN = Job(width=256, length=64, blocks=3, vocabulary=512, steps=8)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """The machine is shared with other tests."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def rehearsed(job: Job, folder: Path) -> Subject:
    """A rehearsal of a job, measured."""
    record(job, folder)
    measures = measure(open_run(folder))
    return Subject(name=folder.name, measures=measures, report=report_of(measures))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The job as it is."""
    return rehearsed(PLAIN, tmp_path_factory.mktemp("plain") / "run")


CHANGES = {
    "prefetch": ("prefetch", replace(PLAIN, forward_prefetch=1)),
    "dtype": ("mp_policy", replace(PLAIN, param_dtype=torch.float32)),
    "wrap": ("units", replace(PLAIN, wrap="all")),
    "reshard": ("reshard_after_forward", replace(PLAIN, reshard=False)),
    "longer": ("tokens", replace(PLAIN, length=128)),
    "world": ("world_size", replace(PLAIN, world_size=32)),
}
"""What is changed: the setting that is named, and the job."""


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # a unit of one nn.Linear
@pytest.mark.parametrize("change", CHANGES)
def test_the_one_thing_that_was_changed_is_named(
    change: str, plain: Subject, tmp_path: Path
) -> None:
    """Alone, whatever else of the units differs because of it; both ways round."""
    setting, job = CHANGES[change]
    changed = rehearsed(job, tmp_path / "run")

    for a, b in ((plain, changed), (changed, plain)):
        found = compare(a, b)
        assert [name.split()[0].rstrip(":") for name in found.changed] == [setting]


def test_repeated_runs_do_not_differ(tmp_path: Path) -> None:
    """In nothing: no setting, no count, no byte and no time."""
    job = replace(PLAIN, blocks=1, steps=6)
    first = rehearsed(job, tmp_path / "first")
    for repeat in range(REPEATS):
        found = compare(first, rehearsed(job, tmp_path / str(repeat)))
        assert (found.differences, found.changed) == ((), ())
        assert not found.regression_share
