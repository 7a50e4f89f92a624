"""What real ranks have to show: those that do not do the same, and compilation."""

from __future__ import annotations

from tests.zoo.entry import Entry, Untold
from tests.zoo.situations import Ranks

STEP = "the twin's steps take some milliseconds: gloo's sockets, and not the sharding"


def ranks(way: str, count: int = 2) -> Ranks:
    """`scripts/ranks.py` in one of its ways."""
    return Ranks(way=way, count=count)


SMALL = dict.fromkeys(
    ("FD101", "FD102", "FD108", "FD401", "FD407", "FD901", "FD902"), STEP
)
"""On two busy cores these are true of any job of some milliseconds a step."""

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="H09",
        why="only the shard dimension of the mesh was passed: replicas train apart",
        fault=ranks("mesh-part", 4),
        cure=ranks("mesh-whole", 4),
        codes=("FD501", "FD507"),
        still=SMALL,
    ),
    Entry(
        number="J01",
        why="a frozen tower of units that a rank without images skips",
        fault=ranks("tower"),
        cure=ranks("tower-always"),
        codes=("FD406",),
        still=SMALL,
    ),
    Entry(
        number="L16",
        why="ranks make different numbers of micro-batches of their rows",
        fault=ranks("micro-batches"),
        cure=ranks("plain"),
        codes=("FD406",),
        still=SMALL,
    ),
    Entry(
        number="P04",
        why="ranks use different parameters: their reductions have other sizes",
        fault=ranks("expert"),
        cure=ranks("expert-agreed"),
        codes=("FD406",),
        still=SMALL,
    ),
    Entry(
        number="P05",
        why="buffers are broadcast in an order that differs by rank",
        fault=ranks("buffers"),
        cure=ranks("buffers-sorted"),
        codes=("FD406", "FD408"),
        still=SMALL,
    ),
    Entry(
        number="P07",
        why="packing left a rank without rows: it skips what others wait for",
        fault=ranks("no-rows"),
        cure=ranks("plain"),
        codes=("FD406",),
        still=SMALL,
    ),
    Entry(
        number="P08",
        why="an early return on one rank, without any parameter",
        fault=ranks("early-return"),
        cure=ranks("plain"),
        codes=("FD406",),
        still=SMALL,
    ),
    Entry(
        number="R05",
        why="a save's plan ran out of memory at 98 % of the device",
        fault=ranks("save"),
        cure=ranks("save-sharded"),
        codes=("FD408",),
        still=SMALL,
    ),
    Entry(
        number="Q01",
        why="sharded before it was compiled: a graph break at each hook",
        fault=ranks("compile-layers-after"),
        cure=ranks("compile-layers-before"),
        codes=("FD505",),
        still=SMALL,
    ),
    Entry(
        number="Q02",
        why="the sharded model is compiled: blocks are to be compiled first",
        fault=ranks("compile-around"),
        cure=ranks("compile-layers-before"),
        codes=("FD505",),
        still=SMALL,
    ),
    Entry(
        number="Q03",
        why="experts that are units break the graph of their block",
        fault=ranks("compile-experts"),
        cure=ranks("compile-experts-in-block"),
        codes=("FD505",),
        still=SMALL,
    ),
    Entry(
        number="Q05",
        why="the whole model is compiled over its units",
        fault=ranks("compile-whole"),
        cure=ranks("compile-layers-before"),
        codes=("FD505",),
        still=SMALL,
    ),
]
