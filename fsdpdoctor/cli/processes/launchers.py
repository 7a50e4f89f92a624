"""Commands that start ranks themselves: each rank is recorded, not the command."""

from __future__ import annotations

import importlib.util
import itertools
import shlex
from collections.abc import Sequence
from pathlib import Path

from fsdpdoctor.errors import UsageError
from fsdpdoctor.storage.regular_file import exists

RUN = ("-m", "fsdpdoctor", "run")

_ELASTIC = {"torchrun", "torch.distributed.run", "torch.distributed.launch"}
_OF_CLUSTERS = {"srun", "mpirun", "mpiexec"}


def refuse(name: str, args: Sequence[str], *, is_module: bool) -> None:
    """What starts ranks is no rank. Raises UsageError."""
    if not is_module and exists(Path(name)):
        return
    command = recorded(name, args, is_module=is_module)
    if command is not None:
        raise UsageError(
            f"{name} starts others, which are what is to be recorded:\n  {command}"
        )


def recorded(name: str, args: Sequence[str], *, is_module: bool) -> str | None:
    """The command that records what a launcher starts; None where it is no launcher."""
    known = name if is_module else Path(name).name
    first, rest = args[0] if args else "", args[1:]
    start = ["python", "-m", name] if is_module else [name]
    if known in _ELASTIC:
        return _before_script(start, args)
    if known == "accelerate" and first == "launch":
        return _before_script([*start, "launch"], rest)
    if known == "accelerate.commands.launch":
        return _before_script(start, args)
    if known == "fabric" and first == "run":
        return _fabric(rest)
    if known == "tune" and first == "run":
        return _tune(rest)
    if known in _OF_CLUSTERS:
        return _after_python(start, args)
    if known.rstrip("0123456789.") == "python":
        return shlex.join(["fsdpdoctor", "run", *args])
    return None


def _script_at(args: Sequence[str]) -> int:
    """Where what is run begins: a file of Python, or the option for a module."""
    for at, arg in enumerate(args):
        if arg.endswith(".py") or arg in ("-m", "--module"):
            return at
    return len(args)


def _before_script(start: Sequence[str], args: Sequence[str]) -> str:
    at = _script_at(args)
    target = list(args[at:])
    if target[:1] == ["--module"]:
        target[0] = "-m"
    return shlex.join([*start, *args[:at], *RUN, *target])


def _after_python(start: Sequence[str], args: Sequence[str]) -> str:
    at = next(
        (i for i, arg in enumerate(args) if Path(arg).name.startswith("python")), None
    )
    if at is None:
        return _before_script(start, args)
    return shlex.join([*start, *args[: at + 1], *RUN, *args[at + 1 :]])


def _fabric(args: Sequence[str]) -> str:
    """It starts torchrun with the script alone; Fabric finds torchrun's ranks."""
    at = _script_at(args)
    given = dict(itertools.pairwise(args[:at]))
    ranks = given.get("--devices", "N")
    return shlex.join(["torchrun", "--nproc-per-node", ranks, *RUN, *args[at:]])


def _tune(args: Sequence[str]) -> str:
    """It starts torchrun with a file of its own, which lies beside its package."""
    found = importlib.util.find_spec("torchtune")
    home = Path("recipes")
    if found is not None and found.origin is not None:
        home = Path(found.origin).parents[1] / "recipes"
    names = [at for at, arg in enumerate(args) if exists(home / f"{arg}.py")]
    at = names[0] if names else _script_at(args)
    recipe = [str(home / f"{args[at]}.py")] if names else list(args[at : at + 1])
    rest = args[at + 1 :]
    return shlex.join(["torchrun", *args[:at], *RUN, *recipe, *rest])
