"""Ranks measured by the workers of a dask cluster, in place of local processes."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import islice
from typing import Any

from fsdpdoctor.errors import FsdpDoctorError, MissingDependencyError, UsageError
from fsdpdoctor.version import __version__

NEEDS_DASK = (
    "--scheduler needs dask, here and on every worker: pip install "
    "'fsdpdoctor[cluster]'"
)

CONNECT_S = 20
"""Seconds until a scheduler that does not answer is given up."""


AHEAD = 4
"""Calls for each thread of the workers that are under way, or done and not taken."""


class _Cluster(Executor):
    """Calls functions on a cluster's workers.

    A result stays in its worker's memory until it is let go of, so calls are handed out
    a few at a time: what 4,096 ranks gave would fill it.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    def map(  # type: ignore[override]  # of one argument, which is all that is asked
        self, call: Callable[[Any], Any], given: Iterable[Any]
    ) -> Iterator[Any]:
        """What the calls give, in their order."""
        left = iter(given)
        most = AHEAD * max(1, sum(self._client.nthreads().values()))
        pending = deque(self._submit(call, one) for one in islice(left, most))
        while pending:
            future = pending.popleft()
            result = future.result()
            future.release()
            pending.extend(self._submit(call, one) for one in islice(left, 1))
            yield result

    def _submit(self, call: Callable[[Any], Any], one: Any) -> Any:
        return self._client.submit(call, one, pure=False)


@contextmanager
def cluster_executor(address: str) -> Iterator[Executor]:
    """The workers of a scheduler, as an executor. Its `map` keeps the order.

    Raises MissingDependencyError without dask, UsageError where nobody answers, no
    worker has joined, or a worker has another version of fsdpdoctor: all ranks must
    be measured alike.
    """
    try:
        distributed: Any = importlib.import_module("distributed")
    except ModuleNotFoundError:
        raise MissingDependencyError(NEEDS_DASK) from None
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no dask scheduler answers at {address} ({error}); expected an address "
            "like tcp://host:8786, as `dask scheduler` prints it"
        ) from None
    with client:
        _check(address, client.run(_version, on_error="return"))
        try:
            yield _Cluster(client)
        except distributed.KilledWorker as error:
            raise FsdpDoctorError(
                f"a worker died more than once on one rank ({error}), probably out of "
                "memory: give workers more, or one thread each (--nthreads 1)"
            ) from None


def _version() -> str:
    """What a worker runs to say what it has."""
    return __version__


def _check(address: str, versions: dict[str, object]) -> None:
    if not versions:
        raise UsageError(
            f"the scheduler at {address} has no worker: start some with "
            f"`dask worker {address} --nthreads 1`"
        )
    for worker, version in versions.items():
        if version != __version__:
            raise UsageError(
                f"worker {worker} has fsdpdoctor {version}, this is {__version__}: "
                "install the same in the workers' environment"
            )
