"""The timeline's scripts as they are sent: nothing is missing but their comments."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from fsdpdoctor_dashboard.timeline.scripts import (
    FILES,
    FIRST_PAINT,
    SCRIPTS,
    UnclearScriptError,
    script,
    without_comments,
)

NAMES = """
const fs = require("fs"), vm = require("vm"), names = JSON.parse(fs.readFileSync(0));
const shape = (value) => {
  const own = (object) => Object.getOwnPropertyNames(object || {}).sort();
  const methods = typeof value === "function" ? value.prototype : null;
  return [typeof value, own(value), own(methods), JSON.stringify(value)];
};
const found = names.map((texts) => {
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
    assert {*SCRIPTS, FIRST_PAINT, "dash_component.js"} == {
        path.name for path in FILES.glob("*.js")
    }


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run the JS")
def test_without_comments_the_scripts_define_the_same() -> None:
    """The same names in the window, with the same parts and values."""
    whole = [(FILES / name).read_text(encoding="utf-8") for name in SCRIPTS]
    asked = json.dumps([whole, [script(name) for name in SCRIPTS]])
    run = subprocess.run(
        ["node", "-e", NAMES],
        input=asked,
        capture_output=True,
        text=True,
        check=True,
    )
    before, after = json.loads(run.stdout)

    assert "FsdpTimeline" in {name for name, *_ in before}
    assert after == before
