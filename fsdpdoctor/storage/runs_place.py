"""Where runs lie that were told no place. Standard library only: launchers read it."""

from pathlib import Path

RUNS = Path("fsdpdoctor-runs")
"""Below the working directory."""

LATEST = "latest"
"""The link in it to the last run."""
