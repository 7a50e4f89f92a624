"""Notes the names and parameters of FSDP2's modules in some torch's wheels, as they are
downloaded by `pip download --no-deps torch==VERSION`; nothing else is taken from them.

    python -m tests.recorder.fsdp2.signatures WHEEL...
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

from fsdpdoctor.recorder.fsdp2.signatures import MODULES, PACKAGE, signatures_of

FOLDER = Path(__file__).parent


def of_wheel(wheel: Path) -> dict[str, tuple[str, ...]]:
    """Of the modules that are there; a wheel is a zip, and is not installed."""
    with zipfile.ZipFile(wheel) as files:
        there = set(files.namelist())
        paths = {name: f"{PACKAGE.replace('.', '/')}/{name}.py" for name in MODULES}
        return signatures_of(
            {
                name: files.read(path).decode()
                for name, path in paths.items()
                if path in there
            }
        )


def main() -> None:
    """Write a file for each."""
    for argument in sys.argv[1:]:
        wheel = Path(argument)
        version = wheel.name.split("-")[1]
        lines = [
            f" {json.dumps(name)}: {json.dumps(parameters)}"
            for name, parameters in sorted(of_wheel(wheel).items())
        ]
        text = "{\n" + ",\n".join(lines) + "\n}\n"
        (FOLDER / f"torch-{version}.json").write_text(text)


if __name__ == "__main__":
    main()
