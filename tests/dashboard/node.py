"""The timeline's scripts in Node, with what a page gives them."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from fsdpdoctor_dashboard.timeline.scripts import FILES
from fsdpdoctor_dashboard.timeline.settings import settings_script

needs_node = pytest.mark.skipif(
    shutil.which("node") is None, reason="needs node to run the JS"
)


def required(name: str) -> str:
    """The expression that takes one of the component's scripts."""
    return f"require({json.dumps(str(FILES / name))})"


def run_js(script: str, given: object = None) -> object:
    """What a script prints, as JSON; it finds `given` in `given`."""
    start = 'const given = JSON.parse(require("fs").readFileSync(0, "utf8"));\n'
    run = subprocess.run(
        ["node", "-e", settings_script() + start + script],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    answer: object = json.loads(run.stdout)
    return answer
