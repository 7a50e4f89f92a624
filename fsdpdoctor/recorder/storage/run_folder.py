"""Where a run goes: one folder that all ranks of a node agree on in silence."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fsdpdoctor import redact
from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.recorder import border
from fsdpdoctor.storage.regular_file import read_regular
from fsdpdoctor.storage.runs_place import LATEST, RUNS

_asked = itertools.count()
VARIABLE = "FSDPDOCTOR_RUN"
"""What our own launcher passes to the ranks: folder and run id, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """A run's folder, and the id that all its folders share."""

    folder: Path
    run_id: str


def new_location(out: Path | None, script: str) -> RunLocation:
    """A place for a run that starts now. Raises UsageError where `out` is taken."""
    place = _candidate(out, script)
    _refuse_taken(place)
    return place


def _candidate(out: Path | None, script: str) -> RunLocation:
    run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}"
    if out is None:
        stem = re.sub(r"[^\w.-]+", "-", Path(script).stem).strip("-") or "run"
        folder = RUNS / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
        number = 1
        while folder.exists():
            number += 1
            folder = RUNS / f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{number}"
    else:
        folder = out
    return RunLocation(folder=folder.absolute(), run_id=run_id)


def number(
    name: str, otherwise: int, environment: Mapping[str, str] = os.environ
) -> int:
    """A number that a launcher passes, where it does, and it is one."""
    try:
        return int(environment.get(name, otherwise))
    except ValueError:
        return otherwise


def to_environment(place: RunLocation) -> dict[str, str]:
    """The environment by which the ranks of a launcher find the place."""
    return {VARIABLE: _to_json(place)}


def _to_json(place: RunLocation) -> str:
    return json.dumps({"folder": str(place.folder), "run_id": place.run_id})


def _from_json(text: str, source: str) -> RunLocation:
    try:
        said = json.loads(text)
        return RunLocation(folder=Path(said["folder"]), run_id=said["run_id"])
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{source} is none of ours: {error}") from None


def agree_on_folder(out: Path | None, script: str) -> RunLocation:
    """The place that every rank of this job on this node arrives at.

    Ranks do not talk. Our own launcher has told them; else the first one to link a
    small note into the folder of runs (or into `out`) decides. The note is named for
    the job, by its launcher's process, so that the others find it. Raises OSError where
    no note can be left or read, or `out` is taken; UsageError where that is so and this
    process is no rank.
    """
    told = os.environ.get(VARIABLE)
    if told is not None:
        place = _from_json(told, VARIABLE)
        attempt = number("TORCHELASTIC_RESTART_COUNT", 0)
        return place if attempt == 0 else _attempt(place, attempt)
    if "RANK" not in os.environ:
        return new_location(out, script)
    where = RUNS if out is None else out
    where.mkdir(parents=True, exist_ok=True)
    note = where / f".job-{_job_key(out)}.json"
    if not note.exists():
        _propose(note, out, script)
    place = _from_json(text_of(note), str(note))
    try:
        _refuse_taken(place)
    except UsageError as error:  # a job has begun, and does not end of that
        raise FileExistsError(str(error)) from None
    return place


def point_latest(folder: Path) -> None:
    """Make `fsdpdoctor-runs/latest` lead to a run, if it is in that folder."""
    new = folder.parent / f".{LATEST}.{os.getpid()}"
    try:
        if folder.parent != RUNS.absolute():
            return
        new.symlink_to(folder.name)
        new.replace(folder.parent / LATEST)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)  # no links here; the run itself is fine


def how_it_ended(error: BaseException | None) -> str:
    """What `RankHeader.ended` says of an exception."""
    if error is None:
        return "done"
    kind = type(error)  # what it says of its class itself may be another
    if issubclass(kind, KeyboardInterrupt):
        return f"signal: {signal.Signals.SIGINT.name}"
    if issubclass(kind, SystemExit):
        status = exit_status(getattr(error, "code", None))
        return f"exit: {status}" if status else "done"
    text = redact.text(border.words_of(error))
    return f"exception: {kind.__name__}: {text[:300]}"


def exit_status(code: object) -> int:
    """The status that a process ends with whose script exits so: 0 to 255."""
    if code is None:
        return 0
    if not isinstance(code, int):
        return 1  # Python prints it
    fits = -(1 << 63) <= code < 1 << 63
    return code & 0xFF if fits else 0xFF


def _refuse_taken(place: RunLocation) -> None:
    """Another run's files would be mixed with this one's."""
    header = place.folder / "run.json"
    if not header.exists():
        return
    try:
        there = json.loads(text_of(header)).get("run_id")
    except (OSError, ValueError, AttributeError):  # or JSON that is no header
        there = None
    if there != place.run_id:
        raise UsageError(
            f"{place.folder} holds another run already: name a new folder with --out, "
            "or remove that one"
        )


def text_of(path: Path) -> str:
    """A file's content. Raises OSError, also of a pipe: that somebody writes to it is
    not waited for.
    """
    try:
        return read_regular(path).decode("utf-8", "replace")
    except InputError as error:
        raise OSError(str(error)) from None


def _attempt(place: RunLocation, attempt: int) -> RunLocation:
    """After a restart by torchrun the first attempt's files stay as they are."""
    folder = place.folder.with_name(f"{place.folder.name}-restart{attempt}")
    return RunLocation(folder=folder, run_id=f"{place.run_id}-restart{attempt}")


def _free(place: RunLocation) -> RunLocation:
    """The same place, or one beside it that no run has taken."""
    folder, more = place.folder, 1
    while (folder / "run.json").exists():
        more += 1
        folder = place.folder.with_name(f"{place.folder.name}-{more}")
    return RunLocation(folder=folder, run_id=place.run_id)


def _propose(note: Path, out: Path | None, script: str) -> None:
    attempt = number("TORCHELASTIC_RESTART_COUNT", 0)
    place = _candidate(out, script)
    if attempt and out is not None:
        place = _free(_attempt(place, attempt))  # nobody is there to name another
    if _spans_nodes():
        # The other nodes' ranks see neither this process nor, perhaps, this disk.
        place = RunLocation(folder=place.folder, run_id=_shared_id())
    mine = note.with_name(f"{note.name}.{os.getpid()}")
    try:
        mine.write_text(_to_json(place))
        os.link(mine, note)
    except FileExistsError:
        pass  # another rank was first, and is right
    finally:
        mine.unlink(missing_ok=True)


def _spans_nodes() -> bool:
    environment = os.environ
    return environment.get("LOCAL_WORLD_SIZE") != environment.get("WORLD_SIZE")


def _shared_id() -> str:
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    text = "|".join(os.environ.get(name, "") for name in names)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_OF_A_RANK = (
    *("RANK", "LOCAL_RANK", "SLURM_PROCID"),
    *("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"),
)
"""What a launcher gives each rank, another value to each."""


def _launcher() -> int:
    """The process that has started all ranks of this node: above those that it has
    started for this one alone (a shell, `timeout`, `numactl`), which have its number.
    """
    pid = os.getppid()
    with contextlib.suppress(OSError, IndexError, ValueError):
        while pid > 1 and _is_of_this_rank(pid):
            pid = int(_stat(pid)[1])
    return pid


def _is_of_this_rank(pid: int) -> bool:
    there = dict(
        said.partition("=")[::2]
        for said in os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes()).split("\0")
    )
    mine, elastic = os.environ, "TORCHELASTIC_RUN_ID"
    if elastic in mine and elastic not in there:
        return False  # it is torchrun, with what a node was given
    both = [name for name in _OF_A_RANK if name in mine and name in there]
    return bool(both) and all(mine[name] == there[name] for name in both)


def _stat(pid: int) -> list[str]:
    """What the kernel says of a process, from its state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def launched_by() -> tuple[str, str]:
    """The launcher's process, and when that started; no other has both."""
    parent = _launcher()
    try:
        return str(parent), _stat(parent)[19]
    except (OSError, IndexError):
        return str(parent), ""


def _job_key(out: Path | None) -> str:
    """Names a job on this node: its launcher, which attempt."""
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")
    said = [os.environ.get(name, "") for name in names]
    nth = str(next(_asked))  # a job may record several times, on each rank alike
    text = "|".join([*launched_by(), str(out), nth, *said])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
