"""Importers: traces and exports of other tools, as runs.

`import_run` takes files, folders and globs. A source loads its rank when asked, and
pickles, so that ranks can be read in worker processes.
"""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.file_kind import WHAT_TO_DO, FileKind, sniff
from fsdpdoctor.importers.kineto.source import KinetoSource
from fsdpdoctor.importers.nsys import NsysSource
from fsdpdoctor.importers.rank_files import rank_files, rank_in_name
from fsdpdoctor.importers.reader.chunks import read_head
from fsdpdoctor.importers.reader.read_trace import read_metadata
from fsdpdoctor.run import Run
from fsdpdoctor.schema import SYNTHETIC_KEY, UNKNOWN, VIEW_KEY, RunHeader
from fsdpdoctor.storage.remote_path import RemotePath, path_of
from fsdpdoctor.version import __version__

NO_WORLD_SIZE = (
    "the traces do not say the world size: taken as {world_size}, from their highest "
    "rank"
)

_SUFFIXES = (".json", ".json.gz", ".sqlite", ".sqlite3")
"""What is looked for in a folder. A file that is named is read whatever its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOptions:
    """How to import."""

    rank_regex: str | None = None
    cache_folder: Path | None = None  # None: no cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """One kind of file that becomes a run."""

    kind: FileKind
    open_run: Callable[[Sequence[Path], ImportOptions], Run]


def import_run(
    patterns: Path | str | Sequence[Path | str], options: ImportOptions | None = None
) -> Run:
    """Make a run of trace files: files, folders, globs, or one of these. Nothing is
    loaded yet.

    Raises InputError where a path matches nothing, a named file is of another kind,
    kinds are mixed, or ranks are missing or doubled.
    """
    options = options or ImportOptions()
    if isinstance(patterns, Path | str):
        patterns = [patterns]
    chosen, left_out = _choose(patterns)
    kinds = {kind for _, kind in chosen}
    if len(kinds) > 1:
        shown = ", ".join(f"{path} ({kind})" for path, kind in chosen[:4])
        raise InputError(f"these files are of different kinds: {shown}; give one kind")
    importer = next(one for one in IMPORTERS if one.kind in kinds)
    run = importer.open_run([path for path, _ in chosen], options)
    return Run(
        header=run.header, sources=run.sources, warnings=(*run.warnings, *left_out)
    )


def _choose(
    patterns: Sequence[Path | str],
) -> tuple[list[tuple[Path, FileKind]], list[str]]:
    """The files to import with their kinds, and sentences on those left out.

    A file that was named must be of a kind that is read; others that lie in the same
    folder are left out, and said to be.
    """
    readable = {importer.kind for importer in IMPORTERS}
    chosen: dict[Path, FileKind] = {}
    left_out: list[str] = []
    for pattern in patterns:
        for path, is_named in _expand(pattern):
            kind = sniff(path)
            if kind in readable:
                chosen[path] = kind
                continue
            sentence = f"{path} is {kind}: {WHAT_TO_DO.get(kind, 'it cannot be read')}"
            if is_named:
                raise InputError(sentence)
            left_out.append(f"left out: {sentence}")
    if not chosen:
        given = ", ".join(map(str, patterns))
        reasons = "; ".join(left_out) or "no .json or .json.gz file is there"
        raise InputError(f"no trace found in {given}: {reasons}")
    return list(chosen.items()), left_out


def _expand(pattern: Path | str) -> list[tuple[Path, bool]]:
    """The files of a path or glob, and whether each was named itself."""
    path = path_of(pattern)
    if path.is_dir():
        inside = [
            file
            for file in sorted(path.rglob("*"))
            if file.is_file() and file.name.lower().endswith(_SUFFIXES)
        ]
        return [(file, False) for file in inside]
    if path.exists():
        return [(path, True)]
    found = _matching(path)
    if not found:
        raise InputError(f"{pattern} does not exist, and matches no file as a pattern")
    return [pair for match in found for pair in _expand(match)]


def _matching(path: Path) -> list[Path]:
    """What a path names, taken as a pattern."""
    if isinstance(path, RemotePath):
        return path.matching()
    matches = glob.glob(str(path), recursive=True)  # noqa: PTH207 - may be absolute
    return [Path(match) for match in sorted(matches)]


def _nsys_run(paths: Sequence[Path], options: ImportOptions) -> Run:
    named = [(path, rank_in_name(path, options.rank_regex)) for path in paths]
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
    world_size = max(by_rank) + 1
    digest = hashlib.sha256("\n".join(str(p.resolve()) for p in paths).encode())
    return Run(
        header=RunHeader(
            run_id=digest.hexdigest()[:16],
            source="nsys",
            world_size=world_size,
            device="cuda",
            fsdpdoctor=__version__,
        ),
        sources=tuple(
            NsysSource(path=by_rank[rank], rank=rank, world_size=world_size)
            for rank in sorted(by_rank)
        ),
        warnings=(NO_WORLD_SIZE.format(world_size=world_size),),
    )


def _kineto_run(paths: Sequence[Path], options: ImportOptions) -> Run:
    files = rank_files(paths, options.rank_regex)
    said = {file.world_size for file in files if file.world_size != UNKNOWN}
    world_size = max([*said, files[-1].rank + 1])
    warnings = [note for file in files for note in file.notes]
    if not said:
        warnings.append(NO_WORLD_SIZE.format(world_size=world_size))
    if len(said) > 1:
        warnings.append(f"the traces disagree on the world size: {sorted(said)}")
    metadata = read_metadata(read_head(files[0].path).head)
    if VIEW_KEY in metadata:
        raise InputError(
            f"{files[0].path} was exported for Perfetto, from {metadata[VIEW_KEY]}: "
            "analyze that run itself"
        )
    devices = metadata.get("deviceProperties")
    synthetic = metadata.get(SYNTHETIC_KEY)
    digest = hashlib.sha256("\n".join(str(f.path.resolve()) for f in files).encode())
    return Run(
        header=RunHeader(
            run_id=digest.hexdigest()[:16],
            source="kineto",
            world_size=world_size,
            device="cuda" if devices else "cpu",
            fsdpdoctor=__version__,
            notes=(f"synthetic trace: {synthetic}",) if synthetic else (),
        ),
        sources=tuple(
            KinetoSource(
                path=file.path,
                rank=file.rank,
                world_size=world_size,
                cache_folder=options.cache_folder,
            )
            for file in files
        ),
        warnings=tuple(warnings),
    )


IMPORTERS: tuple[Importer, ...] = (
    Importer(kind=FileKind.KINETO, open_run=_kineto_run),
    Importer(kind=FileKind.NSYS_SQLITE, open_run=_nsys_run),
)
"""Every kind of file that becomes a run."""
