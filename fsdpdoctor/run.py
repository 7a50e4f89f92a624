"""Run: a header and one record per rank. The only reader of run folders.

A `Run` is cheap: ranks are loaded one at a time, by whoever needs one, so that
memory is bounded by a rank and not by a run. Live and imported runs meet here:
past this point nobody knows which it was, except by asking what `evidence` the
ranks have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from fsdpdoctor.errors import InputError, NewerFormatError
from fsdpdoctor.rank_end import Fatal, Stall
from fsdpdoctor.rank_end_files import (
    Beat,
    process_state,
    read_beats,
    read_fatal,
    read_stall,
    write_evidence,
)
from fsdpdoctor.schema import (
    SCHEMA_VERSION,
    UNKNOWN,
    Evidence,
    RankHeader,
    RunHeader,
    Spans,
    StepRecord,
    rank_stem,
)
from fsdpdoctor.storage.regular_file import MOST_HEADER, read_regular
from fsdpdoctor.storage.remote_path import path_of
from fsdpdoctor.untrusted.headers import checked_header, short_word
from fsdpdoctor.untrusted.origin import check_header
from fsdpdoctor.untrusted.rank_stream import Stream, steps_of

OUTSIDE = UNKNOWN
"""The number of the record in a rank's stream that is no step: it holds the spans of
a capture outside every step."""

RUN = "run.json"

_Header = TypeVar("_Header", RunHeader, RankHeader)


class OfRank:
    """What a rank's record and its measures both say: who, and what ids stand for."""

    __slots__ = ()
    header: RankHeader
    names: tuple[str, ...]

    @property
    def rank(self) -> int:
        return self.header.rank

    @property
    def evidence(self) -> frozenset[Evidence]:
        return frozenset(self.header.evidence)

    def unit_name(self, unit: int) -> str | None:
        """A unit's FQN, None for UNKNOWN."""
        units = self.header.units
        return units[unit].fqn if 0 <= unit < len(units) else None

    def name(self, name: int) -> str | None:
        """The string behind a name id, None for UNKNOWN."""
        return self.names[name] if 0 <= name < len(self.names) else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankData(OfRank):
    """All that one rank left."""

    header: RankHeader
    steps: tuple[StepRecord, ...] = ()  # ascending; the last may be incomplete
    outside: Spans = field(default_factory=lambda: Spans.build(0))
    # what a capture holds before, between and after its steps
    rest: StepRecord | None = None  # no step: what is known of the time after the last
    names: tuple[str, ...] = ()
    beats: tuple[Beat, ...] = ()  # oldest first
    truncated: str | None = None  # where and how its files broke off
    stall: Stall | None = None  # it says that nothing progresses
    fatal: Fatal | None = None  # a fatal signal ended it
    process: str | None = None  # state, "gone"; None: ended by its word, or not known


class RankSource(Protocol):
    """Where one rank's record comes from. Must pickle: workers load it."""

    @property
    def rank(self) -> int: ...

    @property
    def where(self) -> str:
        """The file, for messages."""
        ...

    def load(self) -> RankData:
        """Read it. Raises InputError."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What was run, and where each rank's record is; immutable once opened."""

    header: RunHeader
    sources: tuple[RankSource, ...]  # ascending by rank
    warnings: tuple[str, ...] = ()  # said of the run as a whole

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(source.rank for source in self.sources)

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks of the job that left no record, and should have.

        A rehearsal has one rank, which stands for all.
        """
        if self.header.source == "rehearsal":
            return ()
        here = set(self.ranks)
        return tuple(r for r in range(self.header.world_size) if r not in here)

    def load(self) -> Iterator[RankData]:
        """Each rank in turn."""
        for source in self.sources:
            yield source.load()


@dataclass(frozen=True, slots=True, kw_only=True)
class InMemory:
    """A rank that needs no loading: simulated, drawn or just imported."""

    data: RankData

    @property
    def rank(self) -> int:
        return self.data.rank

    @property
    def where(self) -> str:
        return f"rank {self.rank}"

    def load(self) -> RankData:
        return self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFiles:
    """A rank's files in a run folder.

    A run in progress grows: what is written after it was opened is not of this run,
    or two readings of it would not be of the same steps.
    """

    folder: Path
    rank: int
    size: int | None = None  # bytes of its stream when it was opened; None: all
    run_id: str = ""  # as run.json has it
    world_size: int = 1  # this, too

    @property
    def _stem(self) -> Path:
        return self.folder / rank_stem(self.rank)

    @property
    def where(self) -> str:
        return str(self._stem.with_suffix(".arrows"))

    def load(self) -> RankData:
        path = self._stem.with_suffix(".json")
        header = _read_header(path, RankHeader)
        check_header(path, header, self.rank, self.run_id, self.world_size)
        stream = self._stem.with_suffix(".arrows")
        steps, names, truncated = _read_stream(stream, self.size, header)
        outside = [record.spans for record in steps if record.step == OUTSIDE]
        whole = [record for record in steps if record.step != OUTSIDE]
        rest = whole.pop() if whole and whole[-1].is_rest else None
        beats = read_beats(self._stem.with_suffix(".beat"))
        if truncated is not None and beats:
            last = max(beat.step for beat in beats)
            truncated += f"; its last event was in step {last}"
        return RankData(
            header=header,
            steps=tuple(whole),
            outside=Spans.concat(outside),
            rest=rest,
            names=names,
            beats=beats,
            truncated=truncated,
            stall=read_stall(self._stem),
            fatal=read_fatal(self._stem),
            process=_process(header, self._stem),
        )


def in_memory(header: RunHeader, ranks: Sequence[RankData]) -> Run:
    """A run of ranks that are already loaded."""
    ordered = sorted(ranks, key=lambda data: data.rank)
    return Run(header=header, sources=tuple(InMemory(data=d) for d in ordered))


def is_run_folder(path: Path) -> bool:
    """Whether a path is a folder that `open_run` reads: its run.json may be lost."""
    if (path / RUN).is_file():
        return True
    return path.is_dir() and any(path.glob("rank*.arrows"))


def open_run(*paths: str | os.PathLike[str]) -> Run:
    """Open one run. A multi-node job leaves a folder per node: give them all.

    Raises InputError where a folder is no run, or the folders are of different
    runs, or two hold the same rank; NewerFormatError where this version is too
    old to read them.
    """
    folders = [path_of(path) for path in paths]
    warnings: list[str] = []
    headers = [_open_header(folder, warnings) for folder in folders]
    if len({header.run_id for header in headers}) != 1:
        seen = ", ".join(
            f"{f} ({h.run_id})" for f, h in zip(folders, headers, strict=True)
        )
        raise InputError(f"these folders are not of one run: {seen}")
    sources: dict[int, RankFiles] = {}
    for folder in folders:
        for path in sorted(folder.glob("rank*.json")):
            rank = _rank_of(path)
            if rank is None:
                warnings.append(f"left out: {path} is not named as a rank's file is")
                continue
            if rank in sources:
                raise InputError(
                    f"rank {rank} is in both {sources[rank].folder} and {folder}: "
                    "give each folder of the run once"
                )
            size = _size(path.with_suffix(".arrows"))
            sources[rank] = RankFiles(
                folder=folder,
                rank=rank,
                size=size,
                run_id=headers[0].run_id,
                world_size=headers[0].world_size,
            )
    if not sources:
        raise InputError(
            f"{folders[0]} holds run.json and no rank's record "
            "(expected rank00000.json beside it): the run ended before training"
        )
    return Run(
        header=headers[0],
        sources=tuple(sources[rank] for rank in sorted(sources)),
        warnings=tuple(warnings),
    )


def save_run(run: Run, folder: Path) -> None:
    """Write a run of any source as a recorded one: reading it gives the same report.

    What was said of the run and of a broken source becomes notes and warnings.
    """
    from fsdpdoctor.run_writer import RankWriter, write_run_header  # brings Arrow

    notes = (*run.header.notes, *run.warnings)
    write_run_header(
        folder, replace(run.header, schema_version=SCHEMA_VERSION, notes=notes)
    )
    for data in run.load():
        cut = () if data.truncated is None else (data.truncated,)
        warnings = (*data.header.warnings, *cut)
        header = replace(
            data.header,
            schema_version=SCHEMA_VERSION,
            run_id=run.header.run_id,
            warnings=warnings,
        )
        writer = RankWriter(folder, header)
        names: Sequence[str] = data.names
        rest = () if data.rest is None else (data.rest,)
        for record in (*data.steps, *rest, *_outside_record(data)):
            writer.write_step(record, names)
            names = ()
        writer.close()
        stem = folder / rank_stem(data.rank)
        write_evidence(stem, data.beats, data.stall, data.fatal)


def _outside_record(data: RankData) -> Iterator[StepRecord]:
    if len(data.outside):
        yield StepRecord(
            step=OUTSIDE,
            start_ns=0,
            end_ns=0,
            host_start_ns=0,
            host_end_ns=0,
            micro_batches=UNKNOWN,
            complete=False,
            spans=data.outside,
        )


def _open_header(folder: Path, warnings: list[str]) -> RunHeader:
    if not folder.exists():
        raise InputError(f"{folder} does not exist")
    if not is_run_folder(folder):
        raise InputError(
            f"{folder} is not a recorded run: it has no run.json. "
            "Expected the folder that `fsdpdoctor run` printed"
        )
    try:
        return _read_header(folder / RUN, RunHeader)
    except NewerFormatError:
        raise
    except InputError as error:
        told = _told_by_ranks(folder)
        if told is None:
            raise
        warnings.append(
            f"{error}; what its ranks say is read, the command and versions are lost"
        )
        return told


def _told_by_ranks(folder: Path) -> RunHeader | None:
    """What is known of a run without its own header; None: no rank tells."""
    for path in sorted(folder.glob("rank*.json")):
        with suppress(InputError):
            rank = _read_header(path, RankHeader)
            return RunHeader(
                run_id=rank.run_id,
                source="recorded",
                world_size=rank.world_size,
                device=rank.device,
            )
    return None


def _rank_of(path: Path) -> int | None:
    """The rank that a header is named for, exactly as it is written."""
    digits = path.stem.removeprefix("rank")
    if not (digits.isascii() and digits.isdecimal()):
        return None
    rank = int(digits[:_MOST_DIGITS])
    return rank if rank_stem(rank) == path.stem else None


_MOST_DIGITS = 9
"""Of a rank: more are none that `checked_header` would take."""


class _Version(msgspec.Struct):
    schema_version: int


def _read_header(path: Path, header: type[_Header]) -> _Header:
    try:
        content = read_regular(path, MOST_HEADER)
        version = msgspec.json.decode(content, type=_Version).schema_version
        if version > SCHEMA_VERSION:
            raise NewerFormatError(
                f"{path} has format {version}, this fsdpdoctor reads up to "
                f"{SCHEMA_VERSION}: upgrade with pip install -U fsdpdoctor"
            )
        return _checked(path, msgspec.json.decode(content, type=header), content)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path} is damaged: it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {short_word(str(error))}") from None


def _checked(path: Path, header: _Header, content: bytes) -> _Header:
    try:
        return checked_header(header, content)
    except InputError as error:
        raise InputError(f"{path} is damaged: {error}") from None


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _read_stream(path: Path, size: int | None, header: RankHeader) -> Stream:
    try:
        content = read_regular(path, size, cut=True)
    except InputError as error:
        return (), (), str(error)
    except OSError as error:
        return (), (), f"cannot read {path}: {error.strerror}"
    return steps_of(path, content, header)


def _process(header: RankHeader, stem: Path) -> str | None:
    if header.ended != "running":
        return None
    written_ns = stem.with_suffix(".json").stat().st_mtime_ns
    shift_ns = header.unix_minus_clock_ns
    return process_state(header.host, header.pid, written_ns, shift_ns)
