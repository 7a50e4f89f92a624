"""Whether a timeline goes on asking for more of its runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

import fsdpdoctor_dashboard

FOLLOW = Path(str(fsdpdoctor_dashboard.__file__)).parent / "timeline" / "follow.js"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the JS")
@pytest.mark.parametrize(
    ("answers", "more"),
    [
        (["live"], True),
        (["done"], False),
        (["live", "done"], True),
        (["done", "live"], True),
        (["done", "done"], False),
        (["fails"], True),
        (["fails", "done"], True),
    ],
)
def test_runs_are_followed_while_one_of_them_grows(
    answers: list[str], more: bool
) -> None:
    """One that has ended stops nothing, and one that fails is asked again."""
    script = f"""
    global.window = {{}};
    const {{ FsdpFollower }} = require({json.dumps(str(FOLLOW))});
    const revision = (answer) => async () => {{
      if (answer === "fails") throw new Error(answer);
      return {{ revision: 0, live: answer === "live" }};
    }};
    const sources = {json.dumps(answers)}.map((answer) => (
      {{ revision: revision(answer), meta: {{ revision: 0 }} }}));
    new FsdpFollower({{ sources, sayError() {{}} }}).ask()
      .then((more) => console.log(JSON.stringify(more)));
    """
    run = subprocess.run(
        ["node", "-e", script], capture_output=True, text=True, check=True
    )

    assert json.loads(run.stdout) is more
