"""The wheel: the two packages and nothing else, and no torch to import them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

WITHOUT_TORCH = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("no torch here")
sys.meta_path.insert(0, Refuse())
import fsdpdoctor, fsdpdoctor.report, fsdpdoctor.renderers, fsdpdoctor.cli.analyze
import fsdpdoctor.importers, fsdpdoctor.simulate, fsdpdoctor.testing
from fsdpdoctor.cli import main
main(["--version"])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools leaves its own files beside sources,
    and would put what an earlier build left there into this one.
    """
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.so", ".*")
    for name in ("fsdpdoctor", "dashboard", "docs", "tests", "traces"):
        shutil.copytree(ROOT / name, source / name, ignore=skip)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", out, source],
        check=True,
        capture_output=True,
    )
    (built,) = out.glob("*.whl")
    return built


def test_the_wheel_holds_the_two_packages(wheel: Path) -> None:
    """No docs, tests or traces; the data files that the packages need are there."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}

    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "fsdpdoctor",
        "fsdpdoctor_dashboard",
    }
    assert {"fsdpdoctor/py.typed", "fsdpdoctor/cli/analyze.py"} <= set(names)


def test_the_wheel_does_not_ask_for_torch(wheel: Path) -> None:
    """It is the user's own, whatever extra is asked for."""
    archive = zipfile.ZipFile(wheel)
    (path,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = Parser().parsestr(archive.read(path).decode())
    required = metadata.get_all("Requires-Dist") or []

    assert [name for name in required if name.startswith("torch")] == []
    assert {"click", "isal", "msgspec", "nanoarrow", "numpy", "rich"} == {
        name.split(">")[0] for name in required if "extra ==" not in name
    }


def test_everything_but_the_recorder_works_without_torch() -> None:
    """In a process in which torch cannot be imported."""
    shown = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("fsdpdoctor, version")
