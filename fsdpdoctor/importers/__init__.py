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
from fsdpdoctor.importers.device_kind import device_kind
from fsdpdoctor.importers.file_kind import WHAT_TO_DO, FileKind, sniff
from fsdpdoctor.importers.kineto.source import KinetoSource
from fsdpdoctor.importers.rank_files import rank_files
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
"""Names of a folder's files that are said to be left out where they are of no kind that
is known. Which are read is told by their content, as for a file that is named."""


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
            try:
                kind = sniff(path)
            except InputError as error:
                if is_named:
                    raise
                left_out.append(f"left out: {error}")
                continue
            if kind in readable:
                chosen[path] = kind
                continue
            if not is_named and _is_something_else(path, kind):
                continue
            sentence = f"{path} is {kind}: {WHAT_TO_DO.get(kind, 'it cannot be read')}"
            if is_named:
                raise InputError(sentence)
            left_out.append(f"left out: {sentence}")
    if not chosen:
        given = ", ".join(map(str, patterns))
        reasons = "; ".join(left_out) or "no trace file is there"
        raise InputError(f"no trace found in {given}: {reasons}")
    return list(chosen.items()), left_out


def _is_something_else(path: Path, kind: FileKind) -> bool:
    """Whether a file in a folder is nothing that its owner would miss."""
    named_so = path.name.lower().endswith(_SUFFIXES)
    return not named_so and kind in (FileKind.UNKNOWN, FileKind.EMPTY)


def _expand(pattern: Path | str) -> list[tuple[Path, bool]]:
    """The files of a path or glob, and whether each was named itself."""
    path = path_of(pattern)
    if path.is_dir():
        inside = [file for file in sorted(path.rglob("*")) if file.is_file()]
        return [(file, False) for file in inside]
    if path.exists():
        return [(path, True)]
    if path.is_symlink():  # which as a pattern matches itself, and so for ever
        raise InputError(
            f"{pattern} is a link to nothing that can be read: expected a file, or a "
            "folder of them"
        )
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
    from fsdpdoctor.importers.nsys import NsysSource
    from fsdpdoctor.importers.nsys_ranks import nsys_ranks

    ranked = nsys_ranks(paths, options.rank_regex)
    world_size = ranked[-1].rank + 1
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
            NsysSource(
                path=one.path,
                rank=one.rank,
                world_size=world_size,
                process=one.process,
                notes=one.notes,
            )
            for one in ranked
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
    synthetic = metadata.get(SYNTHETIC_KEY)
    digest = hashlib.sha256("\n".join(str(f.path.resolve()) for f in files).encode())
    return Run(
        header=RunHeader(
            run_id=digest.hexdigest()[:16],
            source="kineto",
            world_size=world_size,
            device=device_kind(metadata),
            fsdpdoctor=__version__,
            notes=(f"synthetic trace: {synthetic}",) if synthetic else (),
        ),
        sources=tuple(
            KinetoSource(
                path=file.path,
                rank=file.rank,
                world_size=world_size
                if file.world_size == UNKNOWN
                else file.world_size,
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
