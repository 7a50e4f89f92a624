"""`fsdpdoctor hang`: who a hung job waits for, from its record and from dumps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from fsdpdoctor.cli.inputs import measure_run
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.output import never_fail_to_encode
from fsdpdoctor.cli.processes.terminal import Terminal
from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.hang.diagnose import Diagnosis, Operation, diagnose
from fsdpdoctor.hang.flight_recorder import Dump, load_dumps
from fsdpdoctor.hang.match_units import UnitMatch, match_units
from fsdpdoctor.open_paths import ReadOptions, open_paths
from fsdpdoctor.renderers.hang import Hang, encode_hang, show_hang
from fsdpdoctor.renderers.run_hang import (
    encode_run_hang,
    restarts_of,
    run_hang,
    show_run_hang,
)
from fsdpdoctor.run import RankData, is_run_folder

NO_UNITS = (
    "no pending collective is one of the run's: none has the ranks, kind and bytes of "
    "an FSDP unit's. Is it a run of the same model, on the same mesh?"
)


@click.command(name="hang")
@click.argument("paths", nargs=-1, required=True, type=GivenPath())
@click.option(
    "--run",
    "run_path",
    type=GivenPath(),
    metavar="RUN",
    help="A record or traces of the same training, to name FSDP units by.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: tuple[Path, ...], run_path: Path | None, as_json: bool) -> None:
    r"""Say who a hung job waits for: from its record, also while it hangs, or from
    its Flight Recorder dumps, or from both.

    PATH is the folder of a recorded run: each rank of it leaves where it stands once
    nothing has progressed for `fsdpdoctor run --hang-after` seconds. Or PATH is the
    folder of the dumps that torch writes when a NCCL collective times out
    (TORCH_NCCL_DUMP_ON_TIMEOUT=1, TORCH_NCCL_TRACE_BUFFER_SIZE=20000,
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=DIR/rank_), or the dumps themselves. Ranks that
    left none are named.

    \b
    fsdpdoctor hang fsdpdoctor-runs/latest
    fsdpdoctor hang fsdpdoctor-runs/latest /tmp/nccl_dumps
    fsdpdoctor hang /tmp/nccl_dumps
    fsdpdoctor hang /tmp/nccl_dumps --run fsdpdoctor-runs/latest
    fsdpdoctor hang /tmp/nccl_dumps --json
    """
    never_fail_to_encode()
    recorded = [path for path in paths if _is_record(path)]
    dumped = [path for path in paths if path not in recorded]
    if recorded:
        if run_path is not None:
            raise UsageError("give a recorded run as PATH or with --run, not both")
        _of_record(recorded, dumped, as_json)
        return
    console = Terminal()
    hang = _of_dumps(dumped, None if run_path is None else _record((run_path,)))
    if as_json:
        click.echo(encode_hang(hang), nl=False)
    else:
        show_hang(hang, console)


def _of_record(recorded: list[Path], dumped: list[Path], as_json: bool) -> None:
    """What a run's own record says, and its dumps where there are any."""
    m = measure_run(open_paths(recorded), ReadOptions())
    found = run_hang(m, restarts_of(recorded[0]))
    console = Terminal()
    of_dumps = _of_dumps(dumped, _record(recorded)) if dumped else None
    if as_json:
        click.echo(encode_run_hang(found, of_dumps), nl=False)
        return
    show_run_hang(found, console)
    if of_dumps is not None:
        console.print("\nFlight Recorder")
        show_hang(of_dumps, console)


def _is_record(path: Path) -> bool:
    if path == Path("latest") and not path.exists():
        return True
    return path.is_dir() and (is_run_folder(path) or any(path.glob("*/run.json")))


def _of_dumps(paths: Sequence[Path], run: RankData | None) -> Hang:
    """Who holds up whom by the dumps alone; with a run the units are named."""
    left_out: list[str] = []
    dumps = load_dumps([_checked(path) for path in paths], left_out.append)
    found = diagnose(dumps)
    units: dict[Operation, UnitMatch] = {}
    notes: list[str] = []
    if run is not None:
        units = _units(found, dumps, run)
        if found.standing_at and not units:
            notes.append(NO_UNITS)
    return Hang(found=found, units=units, left_out=tuple(left_out), notes=tuple(notes))


def _checked(path: Path) -> Path:
    if not path.exists():
        raise InputError(
            f"{path} does not exist; expected a recorded run or a folder of dumps"
        )
    return path


def _record(paths: Sequence[Path]) -> RankData:
    """One rank's record: ranks of a training issue the same collectives."""
    run = open_paths(paths)
    return next(iter(run.load()))


def _units(
    found: Diagnosis, dumps: Sequence[Dump], data: RankData
) -> dict[Operation, UnitMatch]:
    matched: dict[Operation, UnitMatch] = {}
    for operation in _operations(found):
        match = match_units(operation, dumps, data)
        if match is not None:
            matched[operation] = match
    return matched


def _operations(found: Diagnosis) -> Iterator[Operation]:
    yield from found.standing_at.values()
    yield from found.stuck
    for culprit in found.culprits:
        if culprit.operation is not None:
            yield culprit.operation
