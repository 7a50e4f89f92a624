"""FSDP2's operators, imported again."""

from __future__ import annotations

from tests.rig.ranks import run_python

RELOADS = """
import importlib, sys, tempfile
import torch
import torch.distributed.fsdp._fully_shard._fsdp_collectives as collectives
import fsdpdoctor

def kept():
    names = "all_gather_copy_in", "split_with_sizes_copy", "chunk_cat"
    before = [getattr(torch.ops.fsdp, name) for name in names]
    importlib.reload(collectives)
    there = vars(torch.ops.fsdp)
    return [n for n, packet in zip(names, before) if there.get(n) is packet]

with fsdpdoctor.record(tempfile.mkdtemp()):
    print(kept())
print(torch.library._clear_torch_ops_cache.__module__)
"""


def test_no_operator_that_has_gone_is_handed_out() -> None:
    """Torch keeps one of three: who calls it reads memory that is not its own."""
    ended = run_python("-c", RELOADS)
    assert (ended.status, ended.stdout) == (0, "[]\ntorch.library\n"), ended.stderr
