"""Whether a timeline goes on asking for more of its runs."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("dash", reason="needs fsdpdoctor[dashboard]")

from tests.dashboard.node import needs_node, required, run_js


@needs_node
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
    const {{ FsdpFollower }} = {required("controls/follow.js")};
    const revision = (answer) => async () => {{
      if (answer === "fails") throw new Error(answer);
      return {{ revision: 0, live: answer === "live" }};
    }};
    const sources = {json.dumps(answers)}.map((answer) => (
      {{ revision: revision(answer), meta: {{ revision: 0 }} }}));
    new FsdpFollower({{ sources, sayError() {{}} }}).ask()
      .then((more) => console.log(JSON.stringify(more)));
    """

    assert run_js(script) is more
