"""The job's own store, over a connection of ours.

Every rank knows where it listens: torchrun, or who starts the ranks otherwise, says so
in MASTER_ADDR and MASTER_PORT, and `init_process_group` reads it there. A connection of
our own waits for nobody of the process groups, and they not for us.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

TIMEOUT_S = 3.0
"""Of one call. A store that answers does so within a millisecond."""


class JobStore:
    """Keys of ours in the job's store. Every call may raise RuntimeError or OSError,
    and is then made over a new connection.
    """

    def __init__(self, connect: Callable[[], Any], prefix: str) -> None:
        self._connect = connect
        self._prefix = prefix
        self._there: Any = None

    def read(self, key: str) -> str | None:
        """What was written; None: nothing yet."""
        full = self._prefix + key
        # `get` alone would wait for it.
        found: str | None = self._call(
            lambda s: s.get(full).decode() if s.check([full]) else None
        )
        return found

    def has_all(self, keys: Sequence[str]) -> bool:
        """Whether each of them was written."""
        full = [self._prefix + key for key in keys]
        return bool(self._call(lambda s: s.check(full)))

    def put_first(self, key: str, value: str) -> str:
        """Write where nothing was written; what is there then."""
        full = self._prefix + key
        return str(self._call(lambda s: s.compare_set(full, "", value)).decode())

    def _call(self, ask: Callable[[Any], Any]) -> Any:
        try:
            if self._there is None:
                self._there = self._connect()
            return ask(self._there)
        except (RuntimeError, OSError):
            self._there = None
            raise


def job_store(run_id: str, *, alone: bool) -> JobStore:
    """Where this job's ranks agree; `alone`: with nobody else."""
    stores: Any = dist
    # A launcher's attempts may share one store.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    prefix = f"fsdpdoctor/autotune/{run_id}/{attempt}/"
    return JobStore(stores.HashStore if alone else _connected, prefix)


def _connected() -> Any:
    try:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError):
        raise OSError("no MASTER_ADDR and MASTER_PORT say where it is") from None
    stores: Any = dist  # its stubs lack half of them
    return stores.TCPStore(
        host,
        port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=TIMEOUT_S),
    )
