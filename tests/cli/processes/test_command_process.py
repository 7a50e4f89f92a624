"""A command's process ends with the command, and with its status."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdpdoctor.cli import main
from tests.rig.ranks import run_python

ENDS = """
import atexit, sys
from fsdpdoctor.cli.processes.command_process import run_command
class Kept:
    def __del__(self):  # as Python takes a module apart
        sys.stdout.write("taken apart\\n")
kept = Kept()
atexit.register(sys.stdout.write, "at exit\\n")
sys.argv[0] = "fsdpdoctor"
run_command()
"""


def ended(tmp_path: Path, *args: str) -> tuple[int, str]:
    """The status and output of a process that runs a command."""
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    done = run_python(str(script), *args)
    return done.status, done.stdout


@pytest.mark.parametrize(
    ("args", "status"), [(("explain", "FD101"), 0), (("analyze", "none.json"), 2)]
)
def test_it_ends_at_once(tmp_path: Path, args: tuple[str, ...], status: int) -> None:
    """What asked to be called at the end is, and nothing is taken apart."""
    code, output = ended(tmp_path, *args)

    assert code == status
    assert output.endswith("at exit\n")


def test_a_scripts_process_ends_as_python_ends(tmp_path: Path) -> None:
    """What the script made is taken apart."""
    code, output = ended(tmp_path, "run", "--help")

    assert code == 0
    assert output.endswith("at exit\ntaken apart\n")


@pytest.mark.parametrize("args", ["explain FD101", "--help", "env"])
def test_a_full_disk_is_said(args: str) -> None:
    """In one line, and not with status 0: what was to be printed is lost."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fsdpdoctor", *args.split()],
            env=os.environ,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert done.returncode == 2
    assert done.stderr == (
        "Error: cannot write what is to be printed: No space left on device\n"
    )


def test_another_error_of_the_system_is_not_said_to_be_of_printing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection's has no file's name either, and standard output is well."""

    def refuses(*_: object, **__: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("click.Group.main", refuses)

    with pytest.raises(ConnectionRefusedError):
        main.main(["env"])


SHOWN = ["analyze", str(Path(__file__).parents[3] / "traces" / "device-slow-wire")]


def test_a_reader_that_goes_is_no_error() -> None:
    """As `head` does: a report is written in pieces."""
    command = [sys.executable, "-m", "fsdpdoctor", *SHOWN]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=os.environ, stdout=pipe, stderr=pipe) as one:
        assert one.stdout is not None
        one.stdout.close()
        said = one.stderr.read() if one.stderr is not None else None

    assert (one.returncode, said) == (0, b"")


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&-"])
def test_streams_that_are_not_there(closed: str) -> None:
    """What is said to them is lost; the answer is the same."""
    command = " ".join((sys.executable, "-m", "fsdpdoctor", *SHOWN, "--no-cache"))
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    whole, without = (
        subprocess.run(["bash", "-c", one], env=os.environ, check=False, **kept)  # type: ignore[call-overload]
        for one in (command, f"{command} {closed}")
    )

    assert without.returncode == 0
    assert without.stdout == (b"" if ">&-" in closed.split() else whole.stdout)
    assert without.stderr == b""
