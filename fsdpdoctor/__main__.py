"""`python -m fsdpdoctor`: the same as the `fsdpdoctor` command."""

from fsdpdoctor.cli import main

if __name__ == "__main__":
    main()
