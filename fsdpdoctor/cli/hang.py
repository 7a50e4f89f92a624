"""`fsdpdoctor hang`: who a hung job waits for, from Flight Recorder dumps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.console import Console

from fsdpdoctor.cli.output import never_fail_to_encode
from fsdpdoctor.errors import InputError
from fsdpdoctor.hang.diagnose import Diagnosis, Operation, diagnose
from fsdpdoctor.hang.flight_recorder import Dump, load_dumps
from fsdpdoctor.hang.match_units import UnitMatch, match_units
from fsdpdoctor.open_paths import open_paths
from fsdpdoctor.renderers.hang import Hang, encode_hang, show_hang
from fsdpdoctor.run import RankData, is_run_folder

NO_UNITS = (
    "no pending collective is one of the run's: none has the ranks, kind and bytes of "
    "an FSDP unit's. Is it a run of the same model, on the same mesh?"
)


@click.command(name="hang")
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--run",
    "run_path",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="A record or traces of the same training, to name FSDP units by.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(paths: tuple[Path, ...], run_path: Path | None, as_json: bool) -> None:
    r"""Say who a hung job waits for, from its Flight Recorder dumps.

    PATH is the folder of the dumps that torch writes when a NCCL collective times
    out (TORCH_NCCL_DUMP_ON_TIMEOUT=1, TORCH_NCCL_TRACE_BUFFER_SIZE=20000,
    TORCH_NCCL_DEBUG_INFO_TEMP_FILE=DIR/rank_), or the dumps themselves. Ranks that
    left none are named.

    \b
    fsdpdoctor hang /tmp/nccl_dumps
    fsdpdoctor hang /tmp/nccl_dumps --run fsdpdoctor-runs/latest
    fsdpdoctor hang /tmp/nccl_dumps --json
    """
    left_out: list[str] = []
    dumps = load_dumps([_checked(path) for path in paths], left_out.append)
    found = diagnose(dumps)
    units: dict[Operation, UnitMatch] = {}
    notes: list[str] = []
    if run_path is not None:
        units = _units(found, dumps, _record(run_path))
        if found.standing_at and not units:
            notes.append(NO_UNITS)
    hang = Hang(found=found, units=units, left_out=tuple(left_out), notes=tuple(notes))
    never_fail_to_encode()
    if as_json:
        click.echo(encode_hang(hang), nl=False)
    else:
        show_hang(hang, Console(highlight=False, markup=False, emoji=False))


def _checked(path: Path) -> Path:
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a folder of dumps")
    if is_run_folder(path):
        raise InputError(
            f"{path} is a recorded run; expected Flight Recorder dumps. What its ranks "
            f"did last is in: fsdpdoctor analyze {path}"
        )
    return path


def _record(path: Path) -> RankData:
    """One rank's record: ranks of a training issue the same collectives."""
    run = open_paths((path,))
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
