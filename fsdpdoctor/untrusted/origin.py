"""Whose a rank's files are: a file copied into another's place is not read as its."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fsdpdoctor.errors import InputError
from fsdpdoctor.schema import STREAM_RANK, STREAM_RUN_ID, RankHeader


def check_header(
    path: Path, header: RankHeader, rank: int, run_id: str, world_size: int
) -> None:
    """Raises InputError where a header is not that rank's of that run of so many
    ranks. One that does not name its run, as those of earlier versions, may be of any
    with as many.
    """
    if header.rank != rank:
        raise InputError(f"{path} is damaged: it says that it is rank {header.rank}")
    if header.run_id and run_id and header.run_id != run_id:
        raise InputError(
            f"{path} is of another run: {header.run_id}, and run.json of {run_id}"
        )
    if not header.run_id and (header.world_size != world_size or rank >= world_size):
        raise InputError(
            f"{path} is of another run: it says rank {rank} of {header.world_size}, "
            f"and run.json {world_size:,} rank{'s' * (world_size != 1)}"
        )


def foreign_stream(
    metadata: Mapping[bytes, bytes] | None, header: RankHeader
) -> str | None:
    """Of what run or rank a stream is, where that is not its header's."""
    said = {
        key: value.decode("utf-8", "replace") for key, value in (metadata or {}).items()
    }
    run_id, rank = said.get(STREAM_RUN_ID.encode()), said.get(STREAM_RANK.encode())
    if run_id is not None and header.run_id and run_id != header.run_id:
        return f"it is of another run: {run_id[:_LONGEST]}"
    if rank is not None and rank != str(header.rank):
        return f"it is of rank {rank[:_LONGEST]}"
    return None


_LONGEST = 80
"""Characters of a run's id: ours have 24, and 9 more after a restart."""
