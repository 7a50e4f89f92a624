"""Many users at once: bursts of tile requests while somebody else's run is read.

Every request of a burst is a connection of its own, and all are opened together: the
server sees as many at once as the burst has. The views are spread over levels and
moments as users' would be; no two requests of a round are the same.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import statistics
import time
import urllib.parse
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tests.dashboard.conftest import Served

T = TypeVar("T")

REST_S = 0.4
"""Between bursts: people look at what they got."""
MOST_BURSTS = 12
LEVELS = 12
"""Levels below the whole run that users look at: a view is then down to a 2,000th."""


@dataclass
class Burst:
    """What was measured of all requests."""

    ms: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    load_s: float = 0.0  # how long the other run took to open meanwhile

    def percentile(self, share: float) -> float:
        """Of the answers' times; NaN of none."""
        if len(self.ms) < 2:
            return float("nan")
        return statistics.quantiles(self.ms, n=100)[round(share * 100) - 1]


@dataclass(frozen=True, kw_only=True)
class Door:
    """How the server is reached and what opens it."""

    host: str
    port: int
    cookie: str


async def _answer(door: Door, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(door.host, door.port)
    lines = (
        f"GET {path} HTTP/1.1",
        f"Host: {door.host}:{door.port}",
        f"Cookie: {door.cookie}",
        "Accept-Encoding: gzip",
        "Connection: close",
    )
    writer.write("\r\n".join((*lines, "", "")).encode())
    answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


async def _timed(door: Door, path: str, found: Burst) -> None:
    began = time.perf_counter()
    try:
        status, _ = await _answer(door, path)
    except (OSError, IndexError, ValueError) as error:
        found.failed.append(repr(error))
        return
    found.ms.append((time.perf_counter() - began) * 1000)
    if status != 200:
        found.failed.append(f"{status}: {path}")


async def _json(door: Door, path: str) -> dict[str, object]:
    _, body = await _answer(door, path)
    if body.startswith(b"\x1f\x8b"):
        body = gzip.decompress(body)
    content: dict[str, object] = json.loads(body)
    return content


def _tiles(run: str, meta: dict[str, object], count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    whole, end = int(str(meta["level"])), int(str(meta["end"]))
    paths = []
    for number in range(count):
        level = whole - int(rng.integers(0, LEVELS))
        query = {
            "run": run,
            "v": f"{seed}-{number}",
            "level": level,
            "index": int(rng.integers(0, end)) >> level,
            "ranks": ",".join(map(str, sorted(rng.permutation(8)[:5]))),
            "rows": "all",
        }
        paths.append(f"/api/tile?{urllib.parse.urlencode(query)}")
    return paths


async def _is_read(door: Door, run: str) -> bool:
    """Whether a run is measured to its end; asking starts it."""
    status, _ = await _answer(door, f"/export/perfetto?run={run}&ranks=none")
    return status != 503  # of a run that is there it is 404: no such rank


async def _measure(door: Door, run: str, other: str, parallel: int) -> Burst:
    found = Burst()
    while not await _is_read(door, run):
        await asyncio.sleep(0.1)
    meta = await _json(door, f"/api/meta?run={run}")
    began = time.perf_counter()
    for seed in range(MOST_BURSTS):
        if await _is_read(door, other):
            break
        paths = _tiles(run, meta, parallel, seed)
        await asyncio.gather(*(_timed(door, path, found) for path in paths))
        await asyncio.sleep(REST_S)
    while not await _is_read(door, other):
        await asyncio.sleep(0.05)
    found.load_s = time.perf_counter() - began
    return found


async def _door(served: Served) -> Door:
    place = urllib.parse.urlsplit(served.base)
    host, port = place.hostname or "", place.port or 0
    reader, writer = await asyncio.open_connection(host, port)
    ask = f"GET /?token={served.token} HTTP/1.1\r\nHost: {host}:{port}\r\n"
    writer.write(f"{ask}Connection: close\r\n\r\n".encode())
    head = (await reader.read()).decode(errors="replace")
    writer.close()
    cookie = next(
        line.partition(":")[2].partition(";")[0].strip()
        for line in head.splitlines()
        if line.lower().startswith("set-cookie:")
    )
    return Door(host=host, port=port, cookie=cookie)


def _run(ask: Callable[[], Coroutine[object, object, T]]) -> T:
    """In a thread of its own: this one's event loop is the browser driver's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(lambda: asyncio.run(ask())).result()


def open_run(served: Served, run: str) -> float:
    """Wait until a run is read and measured; how many seconds that took."""

    async def ask() -> float:
        door = await _door(served)
        began = time.perf_counter()
        while not await _is_read(door, run):
            await asyncio.sleep(0.05)
        return time.perf_counter() - began

    return _run(ask)


def parallel_requests(
    served: Served, run: str, other: str, *, parallel: int = 200
) -> Burst:
    """Bursts of requests for an open run's tiles while `other` is read."""

    async def both() -> Burst:
        return await _measure(await _door(served), run, other, parallel)

    return _run(both)
