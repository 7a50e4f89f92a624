"""What is answered with: bodies, packed where that is worth it, and their headers."""

from __future__ import annotations

from typing import NamedTuple

from isal import igzip

from fsdpdoctor_dashboard.data import tiles
from fsdpdoctor_dashboard.data.run_registry import Picture
from fsdpdoctor_dashboard.server.query_params import Args, BadQueryError, whole, wholes
from fsdpdoctor_dashboard.timeline.settings import MOST_TILES

WORTH_PACKING = 2_000
"""Bytes from which an answer is compressed: a tunnel is slower than a millisecond."""

TILES = "/api/tile"
"""Where tiles are asked for: at every zoom, and nothing else is so often."""
TILE_SECONDS = 3600


class Answer(NamedTuple):
    """A body and what its headers say of it."""

    body: bytes
    headers: dict[str, str]


def packed_answer(body: bytes, encodings: str) -> Answer:
    """The body as it is sent, for what the browser said it accepts."""
    headers = {"Vary": "Accept-Encoding, Cookie"}
    if len(body) > WORTH_PACKING and "gzip" in encodings:
        body = igzip.compress(body, compresslevel=1)
        headers["Content-Encoding"] = "gzip"
    return Answer(body, headers)


def tag_of(run: Picture) -> str:
    """Changes when what a run's tiles show does."""
    return f"{run.store.fingerprint}-{run.revision}"


def tile_answer(run: Picture, args: Args, encodings: str) -> Answer:
    """Tiles as `args` ask for them, packed if the browser can. Raises BadQueryError."""
    level, indices = tiles_asked(args)
    condensed, ranks = args.get("rows") == "condensed", ranks_asked(run, args)
    body = b"".join(
        run.tiles.tile(level, index, ranks, condensed=condensed) for index in indices
    )
    packed, headers = packed_answer(body, encodings)
    headers["Content-Type"] = "application/octet-stream"
    headers["ETag"] = f'"{tag_of(run)}"'
    # The address holds the run's fingerprint: what it names never changes.
    headers["Cache-Control"] = f"private, max-age={TILE_SECONDS}"
    return Answer(packed, headers)


def tiles_asked(args: Args) -> tuple[int, range]:
    """Level and tiles. Raises BadQueryError."""
    level, index = whole(args, "level"), whole(args, "index")
    count = whole(args, "count", 1)
    if not tiles.MIN_LEVEL <= level <= 62 or not 0 <= index < 1 << (62 - level):
        raise BadQueryError("there is no such tile")
    if not 1 <= count <= MOST_TILES:
        raise BadQueryError(f"count must be from 1 to {MOST_TILES}")
    return level, range(index, index + count)


def ranks_asked(run: Picture, args: Args) -> list[int]:
    """Those that the run has. Raises BadQueryError."""
    return [rank for rank in wholes(args, "ranks") if rank in run.store.spans]
