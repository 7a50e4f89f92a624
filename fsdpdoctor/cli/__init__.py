"""The command line: parses, calls, prints; nothing else. One file per command.

Only this package knows exit codes: 0 done, 1 findings at or above `--fail-on`,
2 bad usage or input.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from fsdpdoctor.cli.processes.leaving import let_go_of
from fsdpdoctor.errors import FsdpDoctorError
from fsdpdoctor.version import __version__

COMMANDS: dict[str, str] = {
    "demo": "fsdpdoctor.cli.demo",
    "run": "fsdpdoctor.cli.run",
    "rehearse": "fsdpdoctor.cli.rehearse",
    "check": "fsdpdoctor.cli.check",
    "analyze": "fsdpdoctor.cli.analyze",
    "report": "fsdpdoctor.cli.report",
    "view": "fsdpdoctor.cli.view",
    "share": "fsdpdoctor.cli.sharing.share",
    "bundle": "fsdpdoctor.cli.sharing.bundle",
    "viewer": "fsdpdoctor.cli.sharing.viewer",
    "compare": "fsdpdoctor.cli.compare",
    "whatif": "fsdpdoctor.cli.whatif",
    "tune": "fsdpdoctor.cli.tune",
    "plan": "fsdpdoctor.cli.plan",
    "calibrate": "fsdpdoctor.cli.modelled.calibrate",
    "explain": "fsdpdoctor.cli.explain",
    "import": "fsdpdoctor.cli.import_",
    "export": "fsdpdoctor.cli.export",
    "hang": "fsdpdoctor.cli.hang",
    "env": "fsdpdoctor.cli.env",
}
"""Command name to the module that holds `command`, in the order of `--help`.

A module is imported when its command is used, so that `run` starts fast and no
command needs another's packages.
"""


LONGEST_ERROR = 4000
"""Characters: a list of ranks or of paths may be long, a name should not be."""


def _shown(error: FsdpDoctorError) -> str:
    """Its words, which may hold names of files and fields that are anyone's."""
    from fsdpdoctor.renderers.formatting import shorten, visible_lines

    return shorten(visible_lines(str(error)), LONGEST_ERROR)


def _keep_lines(command: click.Command) -> click.Command:
    r"""Turn the `\b` of a raw docstring into the mark that keeps a help's lines."""
    command.help = (command.help or "").replace("\\b\n", "\b\n")
    return command


_COLLECTED_EVERY = 20_000
"""New objects. Python's 700 suit a server: what a command makes stays until it ends."""


@contextmanager
def _collector_paused(*, freeze: bool) -> Iterator[None]:
    """While modules are imported nothing is garbage, and each collection looks at all
    that was made so far: a tenth of the time that imports take. What is imported stays,
    so that no later collection need look at it either, and few are needed: `freeze`
    where no script of the user's runs in this process, whose collector is its own.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if freeze:
            gc.freeze()
            gc.set_threshold(_COLLECTED_EVERY)
        if was_on:
            gc.enable()


RUN_SCRIPTS = ("demo", "run", "rehearse", "check", "tune", "plan")
"""Commands in whose process the user's code may run."""

_BLAS_THREADS = "OPENBLAS_NUM_THREADS"


@contextmanager
def _no_blas_threads() -> Iterator[None]:
    """Without them: numpy's library for matrices starts one for each core as it is
    imported, and nothing here multiplies any. On two cores that is a sixth of what
    numpy costs. The variable is nobody else's to see.
    """
    if _BLAS_THREADS in os.environ:
        yield
        return
    os.environ[_BLAS_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_BLAS_THREADS]


def _imported(cmd_name: str) -> ModuleType:
    """The module of a command."""
    name, runs_scripts = COMMANDS[cmd_name], cmd_name in RUN_SCRIPTS
    if name in sys.modules:
        return sys.modules[name]
    own = nullcontext() if runs_scripts else _no_blas_threads()
    with _collector_paused(freeze=not runs_scripts), own:
        return importlib.import_module(name)


def _open_streams() -> None:
    """Those that the process was started without: what is said to them is lost. A
    script has to find them as they are.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, nowhere)


_NOT_TAKEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF}
"""What a system says of a write that it does not take."""


class _Commands(click.Group):
    """Finds commands in `COMMANDS`, and turns our errors into one line."""

    ran_script = False
    """Whether the user's code may have run in this process."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = _imported(cmd_name).command
        return _keep_lines(command)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            # Errors of files have their names; a script's own are not ours to word.
            of_output = error.filename is None and error.errno in _NOT_TAKEN
            if self.ran_script or not of_output:
                raise
            let_go_of(sys.stdout)
            why = error.strerror or str(error)
            click.echo(f"Error: cannot write what is to be printed: {why}", err=True)
            raise SystemExit(2) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name in RUN_SCRIPTS:
            self.ran_script = True
        else:
            _open_streams()
        return name, command, rest

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except FsdpDoctorError as error:
            click.echo(f"Error: {_shown(error)}", err=True)
            raise SystemExit(2) from None
        except BrokenPipeError:
            # The reader (head, less) has gone: nothing is left to say, nor to flush.
            let_go_of(sys.stdout)
            raise SystemExit(0) from None
        except OSError as error:
            # What asks whether a path is there raises of a name that is too long, and
            # of a folder without the right. A script's own errors are not ours to word.
            if self.ran_script or error.filename is None:
                raise
            said = FsdpDoctorError(f"cannot use {error.filename}: {error.strerror}")
            click.echo(f"Error: {_shown(said)}", err=True)
            raise SystemExit(2) from None


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fsdpdoctor")
def main() -> None:
    r"""Say what a PyTorch FSDP2 run waits for, why, and what to change.

    \b
    fsdpdoctor demo                                   see it work, on CPU
    fsdpdoctor run --nproc-per-node 8 train.py        record a run
    fsdpdoctor analyze fsdpdoctor-runs/latest         diagnose a run or traces
    """


_keep_lines(main)
