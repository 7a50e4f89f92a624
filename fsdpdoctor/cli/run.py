"""`fsdpdoctor run`: train as usual, and record it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from os import getpid  # kept: a script may put its own in place of it
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from fsdpdoctor import recorder, redact
from fsdpdoctor.cli.option_types.amount import Amount
from fsdpdoctor.cli.option_types.given_path import GivenPath
from fsdpdoctor.cli.processes import launchers
from fsdpdoctor.cli.processes.leaving import reraise_sigint
from fsdpdoctor.cli.processes.then_tune import train_then_tune
from fsdpdoctor.cli.run_options import (
    AUTOTUNE,
    Autotune,
    RunCommand,
    RunOptions,
    autotune_asked,
    given_to_torchrun,
    metrics_address,
    option,
    refuse_restart,
)
from fsdpdoctor.errors import PlanError, RehearsalError, UsageError
from fsdpdoctor.plan_file import read_settings
from fsdpdoctor.rank_end import HANG_AFTER_S
from fsdpdoctor.recorder import border
from fsdpdoctor.recorder.launch import run_script as launching
from fsdpdoctor.recorder.launch.after_threads import AfterThreads
from fsdpdoctor.recorder.launch.closing_words import (
    Surroundings,
    report,
    say_unseen_children,
    short,
    working_directory,
)
from fsdpdoctor.recorder.launch.profiler_schedule import capture_of
from fsdpdoctor.recorder.script_recording import ScriptRecording
from fsdpdoctor.recorder.storage import run_folder
from fsdpdoctor.recorder.storage.sampling import AroundProfiler, sampling_of
from fsdpdoctor.recorder.storage.size_limit import max_bytes_of
from fsdpdoctor.storage.regular_file import exists
from fsdpdoctor.storage.runs_place import RUNS

if TYPE_CHECKING:
    from fsdpdoctor.cli.processes.live import LiveView
    from fsdpdoctor.cli.processes.metrics import MetricsServer
    from fsdpdoctor.recorder.recording_config import RecordingConfig
    from fsdpdoctor.recorder.session import Session


@click.command(
    cls=RunCommand,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.option("--nproc-per-node", "--nproc_per_node", help="Ranks on this node.")
@click.option("--out", type=GivenPath(), help="Folder of the run.")
@click.option("--steps", help="Record steps A to B, B not included: A:B.")
@click.option("--every", type=int, help="Record one step in K.")
@click.option(
    "--apply",
    "plan",
    type=GivenPath(),
    help="Change the model as this plan says, which `whatif --save` wrote.",
)
@click.option(
    AUTOTUNE,
    type=autotune_asked,
    metavar="[=MINUTES|restart]",
    help="Try other settings of FSDP2 meanwhile, between steps, and keep what is "
    "faster; no number of the training changes. restart: at its end fsdpdoctor tune "
    "tries what needs a new start. See docs/autotune.md.",
)
@click.option(
    "--stop-after", type=click.IntRange(min=1), help="End after so many FSDP2 steps."
)
@click.option(
    "--check-bits", is_flag=True, help="Leave a hash of each rank's parameters."
)
@click.option(
    "--kineto",
    type=int,
    metavar="N",
    help="Record N steps with torch.profiler, too, into RUN/kineto.",
)
@click.option(
    "--kineto-ranks", metavar="0,1", help="The ranks that do so. Default: 0,1."
)
@click.option(
    "--max-size",
    metavar="SIZE",
    help="Of the record, over all ranks: 500MB. Where it is full, the oldest steps "
    "keep their times alone.",
)
@click.option(
    "--live", is_flag=True, help="Show the run in a browser while it goes on."
)
@click.option(
    "--prometheus-port",
    metavar="PORT",
    type=metrics_address,
    help="Answer Prometheus at this port while it goes on; HOST:PORT for other "
    "machines.",
)
@click.option(
    "--hang-after",
    type=Amount(min=0),
    default=HANG_AFTER_S,
    show_default=True,
    metavar="SECONDS",
    help="Without progress for so long, each rank leaves where it stands, for "
    "fsdpdoctor hang. 0: never.",
)
@click.option("--no-report", is_flag=True, help="Print no summary at the end.")
@click.option("-m", "is_module", is_flag=True, help="Run a module, as python -m.")
@click.option("--nnodes", help="torchrun's.")
@click.option("--node-rank", "--node_rank", help="torchrun's.")
@click.option("--master-addr", "--master_addr", help="torchrun's.")
@click.option("--master-port", "--master_port", help="torchrun's.")
@click.option("--max-restarts", "--max_restarts", help="torchrun's.")
@click.option("--rdzv-backend", "--rdzv_backend", help="torchrun's.")
@click.option("--rdzv-endpoint", "--rdzv_endpoint", help="torchrun's.")
@click.option("--rdzv-id", "--rdzv_id", help="torchrun's.")
@click.option("--rdzv-conf", "--rdzv_conf", help="torchrun's.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    nproc_per_node: str | None,
    out: Path | None,
    steps: str | None,
    every: int | None,
    plan: Path | None,
    autotune: Autotune | None,
    stop_after: int | None,
    check_bits: bool,
    kineto: int | None,
    kineto_ranks: str | None,
    max_size: str | None,
    live: bool,
    prometheus_port: str | None,
    hang_after: float,
    no_report: bool,
    is_module: bool,
    script: str,
    args: tuple[str, ...],
    **torchrun_options: str | None,
) -> None:
    r"""Run SCRIPT (or -m MODULE) with ARGS, and record it.

    Nothing in the script changes. Outside torchrun, --nproc-per-node starts
    torchrun; under torchrun, this is one of the ranks.

    \b
    fsdpdoctor run --nproc-per-node 8 train.py --lr 1e-4
    torchrun --nproc-per-node 8 -m fsdpdoctor run train.py --lr 1e-4
    fsdpdoctor run --steps 100:120 --out runs/a -m package.train
    fsdpdoctor run --nproc-per-node 8 --apply plan.json train.py
    fsdpdoctor run --nproc-per-node 8 --autotune train.py
    fsdpdoctor run --nproc-per-node 8 --kineto 2 train.py
    fsdpdoctor run --nproc-per-node 8 --live train.py
    """
    target = launching.Target(name=script, is_module=is_module, args=args)
    launchers.refuse(script, args, is_module=is_module)
    sampling_of(steps, every)  # says what is wrong before anything starts
    max_bytes = max_bytes_of(max_size)
    capture = None if kineto is None else capture_of(kineto, kineto_ranks, steps)
    recorder.require_torch()
    settings = None if plan is None else read_settings(plan)
    if "RANK" not in os.environ and nproc_per_node is not None:
        options = given_to_torchrun(nproc_per_node, torchrun_options)
        if not is_module and not exists(Path(script)):
            raise UsageError(f"cannot run {script}: there is no such file")
        place = _new_location(out, script)
        os.environ.update(run_folder.to_environment(place))
        own = [
            *option("--steps", steps),
            *option("--every", every),
            *option("--apply", plan),
            *([] if autotune is None else [f"{AUTOTUNE}={autotune.minutes}"]),
            *option("--stop-after", stop_after),
            *["--check-bits"] * check_bits,
            *option("--kineto", kineto),
            *option("--kineto-ranks", kineto_ranks),
            *option("--max-size", max_size),
            *["--live"] * live,  # rank 0 starts it, after a restart, too
            *option("--prometheus-port", prometheus_port),
            *option("--hang-after", hang_after),
            *["--no-report"] * no_report,
        ]
        if autotune is not None and autotune.restart:
            command = launching.torchrun_command(options, target, own)
            train_then_tune(command, nproc_per_node, target)
        launching.torchrun(options, target, own)
    refuse_restart(autotune)
    run_rank(
        RunOptions(
            target=target,
            out=out,
            steps=steps,
            every=every,
            report=not no_report,
            settings=settings,
            autotune=None if autotune is None else autotune.minutes,
            stop_after=stop_after,
            check_bits=check_bits,
            capture=capture,
            max_bytes=max_bytes,
            live=live,
            metrics_at=prometheus_port,
            hang_after_s=hang_after,
        )
    )


def _new_location(out: Path | None, script: str) -> run_folder.RunLocation:
    """For all ranks; where nobody may look there, each of them says so."""
    try:
        return run_folder.new_location(out, script)
    except OSError:
        return _nowhere(out)


def _nowhere(out: Path | None) -> run_folder.RunLocation:
    folder = working_directory() / (out or RUNS / "unrecorded")
    return run_folder.RunLocation(folder=folder, run_id="unrecorded")


def run_rank(
    asked: RunOptions, job: AbstractContextManager[None] | None = None
) -> None:
    """Run and record; the process then ends as the script has ended.

    `job` surrounds the script and its recording, not the report.
    """
    within = recorder.current()
    place = _place(asked) if within is None else _of(within)
    first = run_folder.number("RANK", 0) == 0 and within is None
    beside = [*_beside(asked, place.folder)] if first else []
    around, pid = Surroundings.now(), getpid()
    after = AfterThreads(waits=job is None and asked.is_left_alone)
    with job or nullcontext():
        error = _run(asked, place, after)
    if first and getpid() == pid:
        if asked.report and not isinstance(error, RehearsalError):
            after.do(lambda: report(place.folder, around))
        for one in beside:
            after.do(one.close)
    kind = type(error)  # what an error says of its class itself may be another
    if error is not None and issubclass(kind, (SystemExit, PlanError, RehearsalError)):
        raise error
    if issubclass(kind, KeyboardInterrupt):
        reraise_sigint()
    if error is not None:
        raise SystemExit(1)


def _place(asked: RunOptions) -> run_folder.RunLocation:
    """Where to record. A rank that cannot agree with the others does not record: it
    would leave a run of another id where they find room for theirs.
    """
    try:
        return run_folder.agree_on_folder(asked.out, asked.target.name)
    except OSError as error:
        recorder.unrecorded(border.describe(error))
        return run_folder.RunLocation(folder=_nowhere(asked.out).folder, run_id="")


def _of(session: Session) -> run_folder.RunLocation:
    """Where this process is recorded already: it has one record, and one report."""
    border.say(
        f"fsdpdoctor: this process is recorded into {short(session.folder)}, and not "
        "a second time"
    )
    return run_folder.RunLocation(folder=session.folder, run_id="")


def _beside(asked: RunOptions, folder: Path) -> Iterator[LiveView | MetricsServer]:
    """What is to be seen of the run meanwhile."""
    try:
        if asked.live:
            from fsdpdoctor.cli.processes.live import LiveView

            yield LiveView(folder)
        if asked.metrics_at is not None:
            from fsdpdoctor.cli.processes.metrics import MetricsServer

            yield MetricsServer(folder, asked.metrics_at)
    except Exception as error:
        border.say(f"fsdpdoctor: no live view: {border.describe(error)}")


def _run(
    asked: RunOptions, place: run_folder.RunLocation, after: AfterThreads
) -> BaseException | None:
    """Run and record; what ended the script, None for its end."""
    script = launching.load(asked.target)
    # Around the recording: its hooks come and go, and must go back to these.
    with ExitStack() as around:
        watchers = [around.enter_context(c) for c in _changes(asked, place.folder)]
        script = replace(script, run=partial(_to_the_end, script.run, watchers))
        return _record(asked, place, script, after)


def _changes(
    asked: RunOptions, folder: Path
) -> Iterator[AbstractContextManager[ScriptListener]]:
    """What is done to the script beside recording it."""
    if asked.settings is not None:
        from fsdpdoctor.recorder.changes.apply_plan import applying

        yield applying(asked.settings, folder)
    if asked.stop_after is not None or asked.check_bits:
        from fsdpdoctor.recorder.changes.trial_run import on_trial

        rank = run_folder.number("RANK", 0)
        yield on_trial(asked.stop_after, folder if asked.check_bits else None, rank)
    if asked.capture is not None:
        from fsdpdoctor.recorder.launch.profiler_capture import capturing

        yield capturing(asked.capture, folder, run_folder.number("RANK", 0))


class ScriptListener(Protocol):
    """Who wants to know that the script has come to its own end."""

    def script_ended(self) -> None:
        """It has, without an error."""
        ...


def _to_the_end(run: Callable[[], None], watchers: Sequence[ScriptListener]) -> None:
    ended: SystemExit | None = None
    pid = getpid()
    try:
        run()
    except SystemExit as caught:
        if caught.code:
            raise
        ended = caught
    if getpid() == pid:
        for watcher in watchers:
            watcher.script_ended()
    if ended is not None:
        raise ended


def _record(
    asked: RunOptions,
    place: run_folder.RunLocation,
    script: launching.Script,
    after: AfterThreads,
) -> BaseException | None:
    within, pid = recorder.current(), getpid()
    records = within is None and place.run_id != ""
    config = _recording(asked, place) if records else None
    recording = ScriptRecording(place.folder, config)
    late = asked.autotune is None and script.sets_variables
    if not late:
        recording.begin()
    error: BaseException | None = None
    try:
        with (
            _autotuning(asked, None if recording.session is None else config),
            recording.with_torch() if late else nullcontext(),
        ):
            script.run()
    except BaseException as caught:
        error = asked.ended(caught) or caught
        session = recording.session
        if not issubclass(type(error), (SystemExit, PlanError)):
            if session is not None and getpid() == pid:
                # A signal that comes while it is printed only follows from it.
                border.last_words(partial(_say_ended, session, caught, error))
            if error is caught:
                error = _reported(caught)
    else:
        asked.ended(None)
    if getpid() != pid:
        return error  # a forked child has come here: it is none of ours
    if recording.session is not None:
        after.do(partial(say_unseen_children, recording.session))
    after.do(lambda: recording.end(run_folder.how_it_ended(error), error))
    return error


def _autotuning(
    asked: RunOptions, config: RecordingConfig | None
) -> AbstractContextManager[None]:
    if asked.autotune is None or config is None:
        return nullcontext()
    from fsdpdoctor.recorder.autotune.start import autotuning

    return autotuning(config, asked.autotune)


def _say_ended(
    session: Session, caught: BaseException, error: BaseException | None
) -> None:
    session.say_ended(run_folder.how_it_ended(caught), error)


def _recording(asked: RunOptions, place: run_folder.RunLocation) -> RecordingConfig:
    from fsdpdoctor.recorder.recording_config import RecordingConfig

    sampling, notes = sampling_of(asked.steps, asked.every), asked.notes
    if asked.capture is not None:
        sampling = AroundProfiler(sampling, asked.capture.steps)
        notes += (asked.capture.note(run_folder.number("WORLD_SIZE", 1)),)
    config = RecordingConfig(
        folder=place.folder,
        run_id=place.run_id,
        sampling=sampling,
        command=redact.command([asked.target.name, *asked.target.args]),
        source=asked.source,
        notes=notes,
        max_bytes=asked.max_bytes,
        hang_after_s=asked.hang_after_s,
    )
    if asked.autotune is None:
        return config
    from fsdpdoctor.recorder.autotune.start import tuned

    return tuned(config)


def _reported(error: BaseException) -> BaseException:
    """Print it; what ends the script then, which a hook of the script may decide."""
    try:
        launching.report_exception(error)
    except SystemExit as ended:
        return ended
    return error
