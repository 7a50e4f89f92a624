"""A process ends as without us, in whatever state its script has left it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.jobs import note, python

pytestmark = [pytest.mark.faults, pytest.mark.ranks]


ENDS = {
    "working directory removed": "import os, tempfile\n"
    "d = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d); print('fine')",
    "stdout closed": "import sys\nprint('fine')\nsys.stdout.close()",
    "descriptor 1 closed": "import os\nprint('fine')\nos.close(1)",
    "descriptor 2 closed": "import os\nos.close(2)\nprint('fine')",
    "stderr is None": "import sys\nprint('fine')\nsys.stderr = None",
    "stderr raises": "import sys\nprint('fine')\n"
    "class E:\n    def __getattr__(s, n): raise SystemExit(9)\nsys.stderr = E()",
    "stdout raises": "import sys\nprint('fine', flush=True)\n"
    "class E:\n    def flush(s): raise ValueError\nsys.stdout = E()",
    "environment cleared": "import os, sys\n"
    "os.environ.clear(); sys.path.clear(); sys.argv.clear(); print('fine')",
    "excepthook raises": "import sys\n"
    "def hook(*a): raise KeyError('mine')\nsys.excepthook = hook\nraise ValueError(1)",
    "excepthook exits": "import sys\n"
    "def hook(*a): sys.exit(6)\nsys.excepthook = hook\nraise ValueError(1)",
    "excepthook deleted": "import sys\ndel sys.excepthook\nraise ValueError(1)",
    "late thread": "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(1), print('late'))).start()",
    "atexit": "import atexit\natexit.register(lambda: print('bye'))\n"
    "raise SystemExit({'a': 1})",
    "last error": "import atexit, sys\n"
    "atexit.register(lambda: print(repr(sys.last_value)))\nraise ValueError(3)",
    "threads joined": "import threading\n"
    "print([t.name for t in threading.enumerate()])",
    "signal chained": "import os, signal, time\n"
    "old = signal.signal(signal.SIGTERM, lambda n, f: (callable(old) and old(n, f),"
    " print('mine')))\nos.kill(os.getpid(), signal.SIGTERM)\nprint('after')",
    "os._exit": "import os\nprint('fine', flush=True)\nos._exit(5)",
    "recursion": "import sys\ndef f(n): return f(n + 1)\n"
    "try: f(0)\nexcept RecursionError: print('deep')",
    "signal waited for": "import os, signal, time\n"
    "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})\n"
    "os.kill(os.getpid(), signal.SIGUSR1); time.sleep(0.3)\n"
    "print(signal.sigwait({signal.SIGUSR1}))",
    "all descriptors closed": "import atexit, os, signal, time\n"
    "os.closerange(3, 1024); time.sleep(0.3)\n"
    "mine = [os.open(str(n), os.O_RDWR | os.O_CREAT) for n in range(20)]\n"
    "signal.signal(signal.SIGALRM, lambda *a: None)\n"
    "for _ in range(5): os.kill(os.getpid(), signal.SIGALRM); time.sleep(0.02)\n"
    "sizes = lambda: print([os.fstat(file).st_size for file in mine])\n"
    "sizes(); atexit.register(sizes)",
    "children heard": "import signal\n"
    "signal.signal(signal.SIGCHLD, lambda *a: print('child')); print('fine')",
    "faulthandler asked for": "import faulthandler\n"
    "print(faulthandler.is_enabled(), faulthandler.disable())\n"
    "faulthandler.enable(); print(faulthandler.is_enabled(), faulthandler.disable())",
    "files limited": "import resource, signal\n"
    "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
    "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); print('fine')",
    "event loop": "import asyncio, os, signal\n"
    "async def main():\n"
    "    got = asyncio.Event(); loop = asyncio.get_running_loop()\n"
    "    loop.add_signal_handler(signal.SIGTERM, got.set)\n"
    "    os.kill(os.getpid(), signal.SIGTERM); await got.wait(); print('got')\n"
    "asyncio.run(main())\n"
    "read, write = os.pipe(); os.set_blocking(write, False)\n"
    "print(signal.set_wakeup_fd(write), signal.set_wakeup_fd(-1) == write)",
    "run again": "import os, sys\nprint(sys.argv[1:], flush=True)\n"
    "if len(sys.argv) < 2: os.execv(sys.executable, [sys.executable, *sys.argv, 'x'])",
    "exit at exit": "import atexit, sys\natexit.register(sys.exit, 5); print('fine')",
}


@pytest.mark.parametrize("name", ENDS)
def test_a_process_ends_as_without_us(name: str, tmp_path: Path) -> None:
    """The same exit status and standard output, with the report at the end."""
    script = tmp_path / "script.py"
    script.write_text(ENDS[name] + "\n")

    plain = python(str(script), cwd=tmp_path)
    run = ("-m", "fsdpdoctor", "run", "--out", str(tmp_path / "run"))
    ours = python(*run, str(script), cwd=tmp_path)
    note(name, plain, ours, "", "")

    assert ours.trained == plain.trained, ours.stderr[-3000:]
