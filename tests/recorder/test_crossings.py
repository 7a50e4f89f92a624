"""Each place where others call us: known, and harmless when ours fails there."""

from __future__ import annotations

import ast
import importlib
import json
from pathlib import Path

import pytest

from fsdpdoctor.recorder.crossings import CALLBACKS, SITES, TUNING
from tests.rig.ranks import run_ranks

JOB = Path(__file__).with_name("crossings_job.py")
RECORDER = Path(__file__).parents[2] / "fsdpdoctor" / "recorder"

WATCHED = {
    "setattr": "setattr",
    "delattr": "delattr",
    "register_at_fork": "register_at_fork",
    "register_module_forward_pre_hook": "register_module_forward_pre_hook",
    "register_module_forward_hook": "register_module_forward_hook",
    "register_optimizer_step_pre_hook": "register_optimizer_step_pre_hook",
    "register_optimizer_step_post_hook": "register_optimizer_step_post_hook",
    "register_forward_hook": "register_forward_hook",
    "register_hook": "register_hook",
    "add_done_callback": "add_done_callback",
    "start_new_thread": "start_new_thread",
    "Thread": "Thread",
    "Timer": "Timer",
    "signal.signal": "signal.signal",
    "set_wakeup_fd": "set_wakeup_fd",
    "_set_wakeup_fd": "set_wakeup_fd",
    "_signal": "signal.signal",
    "setitimer": "setitimer",
    "alarm": "alarm",
    "settrace": "settrace",
    "setprofile": "setprofile",
    "addaudithook": "addaudithook",
    "atexit.register": "atexit.register",
    "finalize": "finalize",
    "callbacks.append": "gc.callbacks",
    "callbacks.extend": "gc.callbacks",
    "_patches.put": "Patches.put",
    "patches.put": "Patches.put",
    "_patches.wrap": "Patches.wrap",
    "_always.wrap": "Patches.wrap",
    "self.__enter__": "TorchDispatchMode",
    "_patches.put_inside": "Patches.put_inside",
    "full.add": "HookSet.add",
    "light_ones.add": "HookSet.add",
}
"""Calls that make others call us, by the end of what is called."""

ASSIGNED = {"cell_contents", "excepthook", "unraisablehook", "displayhook", "__code__"}


def sites(path: Path) -> set[str]:
    """What a module does of what is watched."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            names = {called, called.rpartition(".")[2]}
            names.add(".".join(called.split(".")[-2:]))
            found |= {WATCHED[name] for name in names & WATCHED.keys()}
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found |= {node.attr} & ASSIGNED
    return found


def test_every_crossing_is_listed() -> None:
    """The list says what the code does, module by module."""
    package = RECORDER.parents[1]
    there = {
        ".".join(path.relative_to(package).with_suffix("").parts): found
        for path in sorted(RECORDER.rglob("*.py"))
        if (found := sites(path))
    }
    # Of our own functions: [Note: Unseen frames] and [Note: Layers].
    there["fsdpdoctor.recorder.patching"].discard("__code__")

    assert there == {module: set(what) for module, what in SITES.items()}


@pytest.mark.parametrize("path", CALLBACKS)
def test_every_callback_is_there(path: str) -> None:
    """The list names functions that there are: else no failure is tried in any."""
    module, _, place = path.partition(":")
    owner, _, name = place.partition(".")

    assert callable(getattr(getattr(importlib.import_module(module), owner), name))


NEVER_AT_5 = {
    "begin",
    "end",
    "stop",
    "refusal",
    "remove",
    "mark_unit",
    "_enters_forward",
    "_entered_forward",
    "_leaves_forward",
    "_left_forward",
    "_enters_backward",
    "_entered_backward",
    "_reduces",
    "_has_reduced",
    "finish",
    "attach",
    "detach",
    "add_root",
    "fsdp2_seen",
    "tree_known",
    "build",
    "_note_bypass",
    "close",
    "write_run",
    "saw_sharded",
    "_write_rest",
    "_see_input",
    "_see_clipping",
    "_see_checkpoints",
    "_see_recomputation",
    "turn",
    "install",
    "undo",
    "units",
    "spec",
    "write_header",
    "of_rank",
    "_describe",
    "resume",
    "drop",
    "step_timed",
    "optimizer_made",
    "_made",
}
"""Called fewer than six times in a training."""

NEVER_IN_A_TRIAL = {
    *("attach", "detach", "_meet", "_begin", "put_back", "_sum_up", "changed"),
}

OF_DEVICES = {"_reduce_wait_begins", "_bracket_wait"}


PARTS = 8


@pytest.mark.ranks
@pytest.mark.faults
@pytest.mark.parametrize("part", range(PARTS))
def test_a_failure_inside_each_changes_no_bit(part: int, tmp_path: Path) -> None:
    """Two ranks train on as without us; it is said once, and in the record."""
    job = (str(JOB), str(tmp_path), str(part), str(PARTS))
    for finished in run_ranks(2, *job, timeout_s=900.0):
        finished.ok()
    for rank in (0, 1):
        results = json.loads((tmp_path / f"results.{rank}.json").read_text())
        plain, tuned = results.pop("plain"), results.pop("plain, tuned")
        assert results.pop("after") == plain
        part_of_both = CALLBACKS[part::PARTS]
        tunings = sum(path in TUNING for path in part_of_both)
        assert len(results) == 2 * len(part_of_both) + 2 * tunings
        wrong = {
            key: _fault_in_tuning(rank, key, result, tuned)
            if key.split()[0] in TUNING
            else _fault(key, result, plain)
            for key, result in results.items()
        }
        assert {key: fault for key, fault in wrong.items() if fault} == {}


def _fault(key: str, result: dict[str, list[str]], plain: list[str]) -> str | None:
    """What is not as it should be."""
    name = key.split()[0].rpartition(".")[2]
    if result["trained"] != plain:
        return "it trained otherwise"
    if len(result["said"]) > 1:
        return f"said {result['said']}"
    if not result["fired"]:
        rare = key.endswith("at 5") and name in NEVER_AT_5
        return None if rare or name in OF_DEVICES else "it was never called"
    return _untold([*result["said"], *result["record"]])


def _fault_in_tuning(
    rank: int, key: str, result: dict[str, list[str]], plain: list[str]
) -> str | None:
    """The same, where one rank alone fails, and a tuning says what it does."""
    name = key.split()[0].rpartition(".")[2]
    if result["trained"] != plain:
        return "it trained otherwise"
    if not key.endswith(f"on rank {rank}"):
        return "it failed" if result["fired"] else None
    if not result["fired"]:
        rare = "in a trial" in key and name in NEVER_IN_A_TRIAL
        return None if rare else "it was never called"
    stopped = [line for line in result["said"] if line.startswith("fsdpdoctor stopped")]
    if len(stopped) > 1:
        return f"said {stopped}"
    return _untold([*result["said"], *result["record"]])


def _untold(told: list[str]) -> str | None:
    said = any("injected" in words for words in told)
    return None if said else f"it is not said: {told}"
