"""Which ranks the Nsight Systems exports that were given hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.nsys import Process, processes_of
from fsdpdoctor.importers.rank_files import rank_in_name
from fsdpdoctor.schema import UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedProcess:
    """A rank: an export, and which of its processes where it holds several."""

    rank: int
    path: Path
    process: int | None = None
    notes: tuple[str, ...] = ()


def nsys_ranks(paths: Sequence[Path], rank_regex: str | None) -> list[RankedProcess]:
    """The ranks of some exports, ascending: one of a file, or one of each process.

    Files of several processes each are nodes, in the order of their names. Raises
    InputError where ranks are not known or doubled.
    """
    several = {path: found for path in paths if len(found := processes_of(path)) > 1}
    if several:
        return _of_nodes(sorted(paths), several)
    named = [(path, rank_in_name(path, rank_regex)) for path in paths]
    if len(named) > 1 and any(rank is None for _, rank in named):
        shown = ", ".join(path.name for path, rank in named if rank is None)
        raise InputError(
            f"no rank is known for {shown}: expected a name like rank3.sqlite; say "
            "where it is with --rank-regex"
        )
    by_rank = {rank or 0: path for path, rank in named}
    if len(by_rank) < len(named):
        raise InputError(
            f"two of {', '.join(path.name for path, _ in named)} are of one rank"
        )
    return [RankedProcess(rank=rank, path=by_rank[rank]) for rank in sorted(by_rank)]


def _of_nodes(
    paths: Sequence[Path], several: dict[Path, list[Process]]
) -> list[RankedProcess]:
    found: list[RankedProcess] = []
    for path in paths:
        if path not in several:
            raise InputError(
                f"{path} holds one process, {next(iter(several))} holds several: give "
                "the reports of whole nodes, or one of each rank"
            )
        for process in several[path]:
            device = "" if process.device == UNKNOWN else f" on device {process.device}"
            note = f"pid {process.pid}{device} of {path.name}: ranks are by device"
            found.append(
                RankedProcess(
                    rank=len(found), path=path, process=process.pid, notes=(note,)
                )
            )
    return found
