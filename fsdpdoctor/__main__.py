"""`python -m fsdpdoctor`: the same as the `fsdpdoctor` command."""

import sys
from pathlib import Path

if __name__ == "__main__":
    if not sys.flags.safe_path:
        # The working directory, whose click.py is none of ours. `run` puts there what
        # a script has there.
        sys.path[0] = str(Path(__file__).parents[1])
    from fsdpdoctor.cli.processes.command_process import run_command

    run_command()
