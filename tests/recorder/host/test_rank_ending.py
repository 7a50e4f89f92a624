"""What an error says, and what it came of, in a line."""

from __future__ import annotations

import itertools
from multiprocessing import get_context
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from fsdpdoctor.hang.error_meaning import meaning_of
from fsdpdoctor.rank_end import EndKind, Position
from fsdpdoctor.recorder.host.rank_ending import MOST_CAUSES, MOST_MESSAGE, rank_end

HERE = "tests/recorder/host/test_rank_ending.py"


def message_of(error: BaseException) -> str:
    """As a record has it."""
    end = rank_end("exception: it", error, Position(step=3), 5)
    assert end is not None
    assert end.message is not None
    return end.message


def caught(raises: Any) -> BaseException:
    """What a function raises."""
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - of any kind
        raises()
    return raised.value


def missing() -> None:
    """The cause."""
    raise KeyError("learning_rate")


def config() -> None:
    """Says nothing of it."""
    try:
        missing()
    except KeyError as error:
        raise ValueError("config is wrong") from error


def test_what_an_error_was_raised_from_is_said_with_its_line() -> None:
    """A pipeline's schedule says of an error only in which stage it came."""
    line = missing.__code__.co_firstlineno + 2
    assert message_of(caught(config)) == (
        f"config is wrong; from KeyError: 'learning_rate' at {HERE}:{line}"
    )


def test_a_group_says_its_first_member() -> None:
    """It has no word of its own."""
    group = ExceptionGroup("two", [ValueError("first"), ValueError("second")])
    assert message_of(group) == "two (2 sub-exceptions); from ValueError: first"


def test_a_chain_has_an_end() -> None:
    """One that comes round to itself too; and each has its part of the room."""
    first, second = ValueError("no " * MOST_MESSAGE), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    said = message_of(first)
    assert said == ("no " * MOST_MESSAGE)[: MOST_MESSAGE // 2] + "; from ValueError: b"
    links = [ValueError(str(at)) for at in range(9)]
    for one, cause in itertools.pairwise(links):
        one.__cause__ = cause
    assert message_of(links[0]).count("; from ") == MOST_CAUSES


def negative(number: int) -> int:
    """What a pool is to do."""
    raise ValueError(f"no root of {number}")


@pytest.mark.filterwarnings("ignore")
def test_a_pool_s_process_says_it_once() -> None:
    """Its traceback comes as the cause, in three quotes."""
    with get_context("fork").Pool(1) as pool:
        said = message_of(caught(lambda: pool.map(negative, [-1])))

    assert said == (
        "no root of -1; from multiprocessing.pool.RemoteTraceback: "
        "ValueError: no root of -1"
    )


class Bad(Dataset[int]):
    """Its third sample raises."""

    def __len__(self) -> int:
        """Four."""
        return 4

    def __getitem__(self, at: int) -> int:
        """Raises ValueError."""
        if at == 2:
            raise ValueError("bad sample 2")
        return at


@pytest.mark.filterwarnings("ignore")
def test_a_loader_s_worker_says_what_its_dataset_raised() -> None:
    """The traceback that torch quotes is in the way of it; and no worker died."""
    loader = DataLoader(Bad(), num_workers=1, multiprocessing_context="fork")
    said = message_of(caught(lambda: list(loader)))

    assert said == (
        "Caught ValueError in DataLoader worker process 0. ValueError: bad sample 2"
    )
    meaning = meaning_of("ValueError", said)
    assert meaning.means == "the dataset's own code failed in a worker"
    assert "shm" not in meaning.change
    killed = "DataLoader worker (pid 7) is killed by signal: Killed."
    assert meaning_of("RuntimeError", killed).means == "a data loader's worker died"


@pytest.mark.parametrize(
    ("code", "said"),
    [("no data for it", "no data for it"), (3, None), (object(), None)],
)
def test_an_exit_says_what_it_prints(code: object, said: str | None) -> None:
    """`sys.exit("...")` prints it, and ends with status 1."""
    end = rank_end("exit: 1", SystemExit(code), Position(step=3), 5)

    assert end is not None
    assert (end.kind, end.status, end.message) == (EndKind.EXIT, 1, said)
    assert end.exception is None
