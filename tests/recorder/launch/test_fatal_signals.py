"""Who asks for the handler of fatal signals is told what it would be without us."""

from __future__ import annotations

import os
from pathlib import Path

from fsdpdoctor.recorder.launch.fatal_signals import FatalSignals
from tests.rig.ranks import run_python

ASKS = """
import faulthandler, sys
from pathlib import Path
from fsdpdoctor.recorder.launch.fatal_signals import FatalSignals

folder = Path(sys.argv[1])
fatal = FatalSignals(folder, 0)
missing = FatalSignals(folder / "missing", 0)
print(missing.start(), fatal.start(), faulthandler.is_enabled())
if sys.argv[2] == "disable":
    print(faulthandler.disable(), faulthandler.is_enabled(), faulthandler.disable())
else:
    with (folder / "theirs").open("w") as theirs:
        faulthandler.enable(theirs)
        print(faulthandler.is_enabled(), faulthandler.disable())
fatal.stop()
missing.stop()
print(sorted(path.name for path in folder.iterdir()))
"""


def test_a_script_gets_the_answers_that_it_would_get(tmp_path: Path) -> None:
    """Not enabled until the script does so; no file is left that says nothing."""
    off = run_python("-c", ASKS, str(tmp_path), "disable").ok()
    assert off.stdout == "False True False\nFalse False False\n[]\n"

    on = run_python("-c", ASKS, str(tmp_path), "enable").ok()
    assert on.stdout == "False True False\nTrue True\n['theirs']\n"


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    """Its words go nowhere, by the descriptor that it has inherited."""
    fatal = FatalSignals(tmp_path, 0)
    fatal._mute()  # one that nobody started
    path = tmp_path / "rank00000.fatal"
    with path.open("wb") as file:
        fatal._file = file
        os.write(file.fileno(), b"mine")
        fatal._mute()
        os.write(file.fileno(), b"a child's")
    assert path.read_bytes() == b"mine"
