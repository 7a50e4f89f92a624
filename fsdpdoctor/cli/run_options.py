"""What `run` is asked: options that click alone cannot read, and all of them as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import click

from fsdpdoctor.errors import FsdpDoctorError, UsageError
from fsdpdoctor.plan_file import Settings
from fsdpdoctor.recorder.launch import run_script as launching
from fsdpdoctor.recorder.launch.profiler_schedule import ProfilerSchedule

AUTOTUNE = "--autotune"
NO_LIMIT = 0.0
"""Minutes of `--autotune` alone: as long as there is something to try."""

RESTART = "restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Autotune:
    """What `--autotune` asks for."""

    minutes: float = NO_LIMIT
    restart: bool = False  # afterwards try what needs a new start


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What this process is to run, and how to record it."""

    target: launching.Target
    out: Path | None
    steps: str | None
    every: int | None
    report: bool
    source: str = "recorded"
    notes: tuple[str, ...] = ()
    settings: Settings | None = None  # of the plan to apply
    autotune: float | None = None  # minutes; 0: no limit
    stop_after: int | None = None  # steps
    check_bits: bool = False
    capture: ProfilerSchedule | None = None  # by torch.profiler
    max_bytes: int | None = None  # of the record, of all ranks together
    live: bool = False  # shown in a browser meanwhile
    metrics_at: str | None = None  # where Prometheus may ask meanwhile
    hang_after_s: float = 0.0  # 0: no watching for hangs
    # Told of the script's error, or None; what is to be said in its place, if another.
    ended: Callable[[BaseException | None], FsdpDoctorError | None] = lambda _: None

    @property
    def is_left_alone(self) -> bool:
        """Whether nothing is done to the script that has to be undone in time."""
        changed = (self.settings, self.stop_after, self.capture, self.autotune)
        return not self.check_bits and all(one is None for one in changed)


class RunCommand(click.Command):
    """A command whose `--autotune` may stand without a value: what follows it then is
    the script.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, with that value spelt out."""
        return super().parse_args(ctx, [*self._spelt_out(args)])

    def _spelt_out(self, args: list[str]) -> Iterator[str]:
        takes_value = {
            name
            for option in self.params
            if isinstance(option, click.Option) and not option.is_flag
            for name in option.opts
        }
        left = iter(args)
        for word in left:
            if word == AUTOTUNE:
                yield f"{AUTOTUNE}={NO_LIMIT}"
                continue
            yield word
            if word == "--" or not word.startswith("-"):
                break  # the script, whose arguments are its own
            if word in takes_value:
                yield from islice(left, 1)
        yield from left


def autotune_asked(text: str) -> Autotune:
    """`restart`, or minutes."""
    if text == RESTART:
        return Autotune(restart=True)
    try:
        minutes = float(text)
    except ValueError:
        minutes = -1.0
    if not minutes >= 0:
        raise click.BadParameter(f"{text!r} is no number of minutes, nor {RESTART}")
    return Autotune(minutes=minutes)


def metrics_address(text: str) -> str:
    """A port of this machine alone, or HOST:PORT."""
    port = text.rpartition(":")[2]
    if not port.isdecimal() or int(port) >= 1 << 16:
        raise click.BadParameter(f"{text!r} is no port; expected 9464, or HOST:PORT")
    return text


def refuse_restart(autotune: Autotune | None) -> None:
    """A rank starts no job. Raises UsageError."""
    if autotune is not None and autotune.restart:
        raise UsageError(
            f"{AUTOTUNE}={RESTART} starts the job again, which a rank cannot: give "
            f"--nproc-per-node, or {AUTOTUNE} here and fsdpdoctor tune afterwards"
        )


def option(name: str, value: object) -> list[str]:
    """An option for the ranks, where it was given."""
    return [] if value is None else [name, str(value)]


def given_to_torchrun(nproc: str, given: dict[str, str | None]) -> list[str]:
    """What torchrun is given of its own."""
    options = [f"--nproc-per-node={nproc}"]
    set_options = {n: v for n, v in given.items() if v is not None}
    if not set_options:
        options.append("--standalone")
    return options + [f"--{n.replace('_', '-')}={v}" for n, v in set_options.items()]
