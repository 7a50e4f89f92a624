"""Two ranks over real sockets on a slow wire: a network namespace for each.

The veth pair between them is limited by a token bucket at both ends, so gloo's
collectives take real time on a real wire. Needs root, `ip` and `tc`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tests.rig.ranks import ROOT, free_port

RANKS = 2
ADDRESSES = ("10.77.0.1", "10.77.0.2")


@contextmanager
def slow_link(rate: str, prefix: str) -> Iterator[None]:
    """Two namespaces, named `prefix` and a number, and the wire between them, as fast
    as `tc` takes the rate; gone at the end.
    """
    _remove(prefix)
    try:
        ends = [f"{prefix}{rank}" for rank in range(RANKS)]
        for name in ends:
            _call("ip", "netns", "add", name)
        _call("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for rank, name in enumerate(ends):
            _call("ip", "link", "set", name, "netns", name)
            inside = ("ip", "-n", name)
            _call(*inside, "addr", "add", f"{ADDRESSES[rank]}/24", "dev", name)
            _call(*inside, "link", "set", name, "up")
            _call(*inside, "link", "set", "lo", "up")
            limit = ("tbf", "rate", rate, "burst", "64kb", "latency", "400ms")
            _call("tc", "-n", name, "qdisc", "add", "dev", name, "root", *limit)
        yield
    finally:
        _remove(prefix)


def start_ranks(
    prefix: str, argv: Sequence[str], told: Mapping[str, str], **streams: Any
) -> list[subprocess.Popen[str]]:
    """`python ARGV...` in each namespace, as two ranks, who are told more by their
    environment. `streams` are Popen's.
    """
    port = str(free_port())
    ranks = []
    for rank in range(RANKS):
        name = f"{prefix}{rank}"
        environment = {
            "RANK": str(rank),
            "LOCAL_RANK": "0",
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": ADDRESSES[0],
            "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": name,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
        }
        ranks.append(
            subprocess.Popen(
                ("ip", "netns", "exec", name, sys.executable, *argv),
                env={**os.environ, **environment, **told},
                text=True,
                **streams,
            )
        )
    return ranks


def _remove(prefix: str) -> None:
    """The veth pair goes with its namespaces."""
    for rank in range(RANKS):
        command = ("ip", "netns", "del", f"{prefix}{rank}")
        subprocess.run(command, capture_output=True, check=False)


def _call(*args: str) -> None:
    subprocess.run(args, check=True)
