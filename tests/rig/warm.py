"""Starts processes that need not import torch again: a server has, and forks them.

    with warm_starts():
        job = ranks.start(...)  # as ever

What is started is a fork of the server that becomes `python ARGV`: it ends as an
interpreter does, and belongs to who asked for it. So do the ranks of a torchrun that
was started so. A hundred staged jobs are minutes of importing otherwise.
"""

from __future__ import annotations

import array
import ctypes
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux' prctl
VARIABLE = "TESTS_WARM_SERVER"
"""The server's socket, for what was started warm itself."""

ROOT = Path(__file__).parents[2]
_MOST = 1 << 20


class WarmProcess:
    """What is asked of a `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, if it has ended."""
        if self.returncode is None:
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            if until is not None and time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(0.02)
        return self.returncode or 0


def start_warm(
    argv: Sequence[str],
    env: Mapping[str, str],
    stdout: int,
    stderr: int,
    cwd: Path | None = None,
) -> WarmProcess:
    """As `python ARGV`, in a session of its own."""
    asked = {"argv": list(argv), "env": dict(env), "cwd": str(cwd or Path.cwd())}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(os.environ[VARIABLE])
        files = array.array("i", [stdout, stderr])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)]
        link.sendmsg([json.dumps(asked).encode()], rights)
        pid = int(link.recv(64))
        link.recv(1)  # its end: from here on the process is ours
        return WarmProcess(pid)


@contextmanager
def warm_starts() -> Iterator[None]:
    """A server, for as long as this lasts."""
    # What is forked for us loses its parent, and becomes our child.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "socket"))
        paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(paths),
        }
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.rig.warm", path], env=environment, cwd=ROOT
        )
        os.environ[VARIABLE] = path
        try:
            while not Path(path).exists():
                if server.poll() is not None:
                    raise RuntimeError("the server of warm starts has ended")
                time.sleep(0.1)
            yield
        finally:
            del os.environ[VARIABLE]
            server.terminate()
            server.wait()


# In the server


def _import_all() -> None:
    import torch._dynamo
    import torch.distributed.fsdp
    import torch.distributed.launcher.api
    import torch.optim  # noqa: F401 - all for who is forked

    import fsdpdoctor.cli.hang
    import fsdpdoctor.cli.run
    import fsdpdoctor.recorder.session  # noqa: F401 - all for who is forked


def _serve(path: str) -> list[str]:
    """Returns in every fork, with its arguments."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listens:
        listens.bind(f"{path}.new")
        listens.listen(64)
        Path(f"{path}.new").rename(path)
        while True:
            link = listens.accept()[0]
            said, rights, _, _ = link.recvmsg(_MOST, socket.CMSG_SPACE(8))
            files = array.array("i", rights[0][2])
            between = os.fork()
            if between == 0:
                parent = os.getpid()
                pid = os.fork()
                if pid == 0:
                    link.close()
                    while os.getppid() == parent:  # ranks of one job have one parent
                        time.sleep(0.001)
                    return _become(json.loads(said), *files)
                link.send(str(pid).encode())
                os._exit(0)
            os.waitpid(between, 0)
            link.close()
            for file in files:
                os.close(file)


def _become(asked: dict[str, Any], stdout: int, stderr: int) -> list[str]:
    from fsdpdoctor.recorder import border

    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    border._stderr_was = border.identity(2)  # as at the start of a process
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    if os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(write_through=True)  # type: ignore[union-attr]
    argv: list[str] = asked["argv"]
    return argv


def _ranks_of_torchrun() -> None:
    """Let torchrun's ranks be started in this way, too: by a server of its own, so that
    they are its children.
    """
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    path = f"{os.environ[VARIABLE]}.{os.getpid()}"
    if os.fork() == 0:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        _run(_serve(path))
        raise SystemExit(0)
    while not Path(path).exists():
        time.sleep(0.01)
    os.environ[VARIABLE] = path
    from torch.distributed.elastic.multiprocessing import subprocess_handler

    def popen(self: Any, args: tuple[str, ...], env: dict[str, str]) -> WarmProcess:
        argv = [arg for arg in args[1:] if arg != "-u"]
        return start_warm(argv, env, 1, 2)

    handler: Any = subprocess_handler.subprocess_handler.SubprocessHandler
    handler._popen = popen


def _exec(path: str, args: Sequence[str]) -> None:
    """In place of `os.execv`, by which `fsdpdoctor run` becomes torchrun."""
    _run([arg for arg in args[1:] if arg != "-u"])
    raise SystemExit(0)


def _run(argv: list[str]) -> None:
    if argv[0] == "-m":
        if argv[1] == "torch.distributed.run":
            _ranks_of_torchrun()
        sys.argv[:] = ["-m", *argv[2:]]
        sys.path[0] = str(Path.cwd())
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__file__ = argv[0]
    sys.modules["__main__"] = main
    sys.argv[:] = argv
    sys.path[0] = str(Path(argv[0]).resolve().parent)
    code = compile(Path(argv[0]).read_bytes(), argv[0], "exec", dont_inherit=True)
    exec(code, main.__dict__)


if __name__ == "__main__":
    _import_all()
    _argv = _serve(sys.argv[1])
    os.execv = _exec  # type: ignore[assignment]
    _run(_argv)
