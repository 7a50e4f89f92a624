"""Rehearsals: a script that asks for any job gets rank 0 of the rehearsed one."""

from __future__ import annotations

import os
import runpy
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_saver as saver
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from fsdpdoctor.errors import UsageError
from fsdpdoctor.network import parse_network
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from tests.models import mlp
from tests.networks import uniform
from tests.rig.ranks import TRAIN

WIRE = uniform(1e12, 0)


def test_a_script_sees_rank_0_of_the_job() -> None:
    """Whatever it passes to reach the others, and what torchrun had said before."""
    before = dict(os.environ)
    with rehearsing(Rehearsal(wire=WIRE, world_size=64)):
        dist.init_process_group(
            "nccl",
            init_method="tcp://10.0.0.1:1",
            rank=3,
            world_size=4,
            timeout=timedelta(seconds=5),
        )
        assert (dist.get_rank(), dist.get_world_size()) == (0, 64)
        assert os.environ["WORLD_SIZE"] == "64"
        assert os.environ["LOCAL_WORLD_SIZE"] == "8"
        assert os.environ["GROUP_WORLD_SIZE"] == "8"
    assert dict(os.environ) == before
    assert not dist.is_initialized()


def test_every_way_to_make_a_group_makes_a_modelled_one() -> None:
    """Backends asked for are not there: nothing may try to reach another process."""
    with rehearsing(Rehearsal(wire=WIRE, world_size=8)):
        dist.init_process_group("gloo")
        gloo = dist.new_group([0, 1, 2, 3], backend="gloo")
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("a", "b"))
        mine, _ = dist.new_subgroups(2)  # type: ignore[no-untyped-call]
        groups = [dist.group.WORLD, gloo, mesh.get_group("b"), mine]

        assert [dist.get_backend(g) for g in groups] == ["wire"] * 4
        assert [dist.get_process_group_ranks(g) for g in groups] == [
            list(range(8)),
            [0, 1, 2, 3],
            [0, 1, 2, 3],
            [0, 1],
        ]
        assert dist.new_group([4, 5]) is dist.GroupMember.NON_GROUP_MEMBER
        dist.monitored_barrier()  # only gloo has it


@pytest.mark.parametrize("replicas", [1, 8])
def test_shards_are_those_of_the_job(replicas: int) -> None:
    """Rank 0 holds 1/N of each parameter, rounded up; with HSDP 1/S."""
    with rehearsing(Rehearsal(wire=WIRE, world_size=512, replicas=replicas)):
        dist.init_process_group()
        model = mlp(1, 256)
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
        assert isinstance(model, FSDPModule)
        loss = model(torch.randn(2, 256))
        loss.backward()
        up = model.layers[0].get_parameter("up.weight")
        assert isinstance(up, DTensor)
        assert isinstance(up.grad, DTensor)
        shard = 1024 // (512 // replicas)  # rows of (1024, 256)

        assert up.shape == (1024, 256)
        assert up.to_local().shape == (shard, 256)
        assert up.grad.to_local().shape == (shard, 256)
        assert up.device_mesh.shape == ((512,) if replicas == 1 else (8, 64))
        assert torch.isfinite(loss)


def test_a_mesh_over_all_ranks_gets_replicas() -> None:
    """`--mesh 2x4` makes HSDP of a script that passes its own 1-D mesh."""
    with rehearsing(Rehearsal(wire=WIRE, world_size=8, replicas=2)):
        dist.init_process_group()
        model = torch.nn.Linear(8, 8)
        fully_shard(model, mesh=init_device_mesh("cpu", (8,)))
        (weight, _) = model.parameters()
        assert isinstance(weight, DTensor)
        assert weight.device_mesh.shape == (2, 4)
        assert weight.device_mesh.mesh_dim_names == ("dp_replicate", "dp_shard")


def test_a_two_dimensional_mesh_gets_the_shape_of_the_rehearsal() -> None:
    """A script made for 2 x 2 is rehearsed as 8 x 64 without an edit."""
    with rehearsing(Rehearsal(wire=WIRE, world_size=512, replicas=8)):
        dist.init_process_group()
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        assert mesh.shape == (8, 64)


def test_distributed_checkpoints_are_not_saved(tmp_path: Path) -> None:
    """One rank's parts are no checkpoint; a script that saves one goes on."""
    with rehearsing(Rehearsal(wire=WIRE, world_size=8)):
        dist.init_process_group()
        model = torch.nn.Linear(8, 8)
        fully_shard(model)
        with pytest.warns(RuntimeWarning, match="checkpoints are not saved"):
            saver.save(model.state_dict(), checkpoint_id=str(tmp_path / "a"))
        with pytest.warns(RuntimeWarning, match="checkpoints are not saved"):
            saving = saver.async_save(
                model.state_dict(), checkpoint_id=str(tmp_path / "b")
            )
    assert saving.result() is None  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == []


def test_torch_is_as_it_was_afterwards() -> None:
    """Also where the script raised."""
    before = (dist.init_process_group, dist.new_group, fully_shard, init_device_mesh)
    rehearsal = Rehearsal(wire=WIRE, world_size=4, replicas=2)
    with pytest.raises(ZeroDivisionError), rehearsing(rehearsal):
        raise ZeroDivisionError(dist.init_process_group())
    assert not dist.is_initialized()
    assert before == (
        dist.distributed_c10d.init_process_group,
        dist.distributed_c10d.new_group,
        torch.distributed.fsdp.fully_shard,
        dist.device_mesh.init_device_mesh,
    )


def test_an_untouched_script_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's script, made for 4 gloo ranks, trains as 1 of 64."""
    losses = tmp_path / "losses"
    arguments = ["--fault", "hsdp", "--steps", "2", "--losses", str(losses)]
    monkeypatch.setattr(sys, "argv", [str(TRAIN), *arguments])
    wire = parse_network("shard=nvlink4,replicate=ib400")
    with rehearsing(Rehearsal(wire=wire, world_size=64, replicas=8)):
        runpy.run_path(str(TRAIN), run_name="__main__")
    assert (tmp_path / "losses.0.json").is_file()


def test_refuses_a_job_that_cannot_be() -> None:
    """One line says what does not fit."""
    with pytest.raises(UsageError, match="needs at least 2"):
        Rehearsal(wire=WIRE, world_size=1)
    with pytest.raises(UsageError, match="3 replicas, which do not divide"):
        Rehearsal(wire=WIRE, world_size=8, replicas=3)


def test_the_note_says_that_losses_are_meaningless() -> None:
    """It goes into the run's header, and from there into every report."""
    assert Rehearsal(wire=parse_network("ib400"), world_size=64, replicas=8).note == (
        "losses are meaningless: a rehearsal of rank 0 of 64 as 8x8 on a modelled "
        "wire, ib400 (46.0 GB/s, 30.0 us)"
    )
