"""The timeline's scripts as they are sent: nothing is missing but their comments."""

from __future__ import annotations

import pytest

from fsdpdoctor_dashboard.server.viewer_page import VIEWER
from fsdpdoctor_dashboard.timeline.scripts import (
    FILES,
    FIRST_PAINT,
    SCRIPTS,
    UnclearScriptError,
    script,
    without_comments,
)
from fsdpdoctor_dashboard.timeline.settings import settings_script
from tests.dashboard.node import needs_node, run_js

NAMES = """
const vm = require("vm");
const shape = (value) => {
  const own = (object) => Object.getOwnPropertyNames(object || {}).sort();
  const methods = typeof value === "function" ? value.prototype : null;
  return [typeof value, own(value), own(methods), JSON.stringify(value)];
};
const found = given.map((texts) => {
  const page = vm.createContext({});
  vm.runInContext("var window = globalThis", page);
  const before = new Set(Object.keys(page));
  for (const text of texts) vm.runInContext(text, page);
  return Object.keys(page).filter((name) => !before.has(name)).sort()
    .map((name) => [name, shape(page[name]), Object.keys(page[name]).sort()
      .map((part) => shape(page[name][part]))]);
});
console.log(JSON.stringify(found));
"""


def test_lines_that_are_only_a_comment_are_left_out() -> None:
    """Also those of types; text, casts and comments behind code stay."""
    text = """// What it is.
    /**
     * @param {string} x
     */
    /** one line */
    const a = "// no comment"; // a reason

    const b = /** @type {number} */ (x);
    const c = `/* ${a} */`;
"""

    assert without_comments(text) == (
        '    const a = "// no comment"; // a reason\n'
        "    const b = /** @type {number} */ (x);\n"
        "    const c = `/* ${a} */`;\n"
    )


@pytest.mark.parametrize(
    "text",
    [
        "const a = `one\n// two\n`;",
        'const a = "one\\\n// two";',
        "/* one\n two */ const a = 1;",
    ],
)
def test_a_script_in_which_a_comment_cannot_be_told_is_refused(text: str) -> None:
    """Text over several lines might hold a line that only looks like a comment."""
    with pytest.raises(UnclearScriptError):
        without_comments(text)


def test_every_script_of_the_folder_is_sent() -> None:
    """The list is the folder: Dash's own part apart, which Dash asks for."""
    assert {*SCRIPTS, FIRST_PAINT, VIEWER, "dash_component.js"} == {
        path.relative_to(FILES).as_posix() for path in FILES.rglob("*.js")
    }


@needs_node
def test_without_comments_the_scripts_define_the_same() -> None:
    """The same names in the window, with the same parts and values."""
    whole = [(FILES / name).read_text(encoding="utf-8") for name in SCRIPTS]
    sent = [script(name) for name in SCRIPTS]
    shared = settings_script()
    found = run_js(NAMES, [[shared, *whole], [shared, *sent]])

    assert isinstance(found, list)
    before, after = found
    assert "FsdpTimeline" in {name for name, *_ in before}
    assert after == before
