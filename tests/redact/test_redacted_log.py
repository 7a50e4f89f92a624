"""The log of a trial run: all that was printed, without secrets."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from fsdpdoctor import redact
from fsdpdoctor.cli.processes.trial_runs import TrialRuns
from fsdpdoctor.redact.redacted_log import RedactedLog, pieces
from fsdpdoctor.tune import Failed
from tests.redact.planted import planted


def test_what_a_trial_prints_is_redacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """24 on the command line, 8 in messages, 12 in the environment; the reason of its
    failure, too.
    """
    given = planted()
    for name, value in given.environment.items():
        monkeypatch.setenv(name, value)
    script = (
        "import os, sys\n"
        "print('step 1', *sys.argv[1:-1])\n"
        f"for name in {list(given.environment)!r}: print('have', os.environ[name])\n"
        f"for said in {list(given.messages)!r}: print(said, file=sys.stderr)\n"
        f"raise RuntimeError({given.messages[2]!r})\n"
    )
    monkeypatch.setattr(sys, "argv", ["fsdpdoctor", "tune", *given.arguments])
    runs = TrialRuns(
        launch=[sys.executable, "-c", script],
        options=[],
        script=[*given.arguments, "last"],
        folder=tmp_path / "runs",
        timeout_s=60.0,
        say=lambda _: None,
    )

    outcome = runs.run(None)

    log = (tmp_path / "runs" / "run-00.log").read_text()
    assert "step 1 --out" in log
    assert [secret for secret in given.secrets if secret in log] == []
    assert outcome == Failed(reason="RuntimeError: wrong password <redacted>")


def _logged(tmp_path: Path, printed: bytes) -> str:
    log = RedactedLog(io.BytesIO(printed), tmp_path / "log")
    log.start()
    log.finish()
    return (tmp_path / "log").read_text()


def test_a_private_key_is_left_out_line_by_line(tmp_path: Path) -> None:
    """Its lines look like nothing by themselves."""
    key = b"-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n-----END RSA PRIVATE KEY-----\n"

    assert _logged(tmp_path, b"before\n" + key + b"after\n") == (
        "before\n<redacted>after\n"
    )


def test_a_line_without_end_is_cut_between_words(tmp_path: Path) -> None:
    """No secret is halved by the cut, and nothing is lost."""
    words = b"word " * 30_000 + b"--pass Planted00word " + b"word " * 30_000

    log = _logged(tmp_path, words)

    assert "Planted" not in log
    assert log.count("word ") == 60_000
    assert all(len(piece) <= redact.MOST_TEXT for piece in pieces(io.BytesIO(words)))
    assert b"".join(pieces(io.BytesIO(words))) == words


def test_a_log_that_cannot_be_written_stops_no_job(tmp_path: Path) -> None:
    """Its output is read all the same: a full pipe would hold it for ever."""
    output = io.BytesIO(json.dumps(list(range(100_000))).encode())
    log = RedactedLog(output, tmp_path / "no" / "folder")
    log.start()
    log.join(30)

    assert output.tell() == len(output.getvalue())
