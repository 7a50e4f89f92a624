"""The effective tree: units, policies as they act, meshes, and what is left out."""

from __future__ import annotations

import pytest

from fsdpdoctor.schema import ROOT, BlockSpec, Evidence, Kind, ModelSpec, OptimizerSpec
from tests.recorder.conftest import Recorded

pytestmark = pytest.mark.ranks


def model_of(recorded: Recorded, scenario: str) -> ModelSpec:
    """The model as the first rank describes it."""
    model = recorded.rank(scenario).header.model
    assert model is not None
    return model


def test_describes_each_unit(two: Recorded) -> None:
    """Names as in FSDP2's labels, sizes with padding, and the policy that acts."""
    root, block = two.rank("block").header.units[:2]

    assert (root.fqn, root.module_class, root.is_root) == (ROOT, "Model", True)
    assert (block.fqn, block.module_class, block.is_root) == (
        "layers.0",
        "Block",
        False,
    )
    # The root was asked for the default, and does not reshard.
    assert (root.reshard_after_forward, block.reshard_after_forward) == (False, True)
    assert (block.numel, block.trainable_numel, block.frozen_numel) == (544, 544, 0)
    assert (block.param_bytes, block.unsharded_bytes, block.shard_bytes) == (
        2176,
        2176,
        1088,
    )
    assert block.padding_bytes == 0
    assert (block.orig_dtype, block.gather_dtype, block.param_dtype) == (
        "float32",
        "float32",
        None,
    )
    assert (block.mesh, block.parent_meshes) == ("(2)", ())
    assert [p.fqn for p in block.params] == [
        f"layers.0.{name}" for name in ("a.weight", "a.bias", "b.weight", "b.bias")
    ]
    assert block.params[0].shape == (16, 16)
    assert (block.params[0].local_numel, block.params[0].padded_local_numel) == (
        128,
        128,
    )
    assert (block.forward_prefetch, block.backward_prefetch) == ((), ())
    assert (block.requires_gradient_sync, block.offload) == (True, None)


def test_a_gather_brings_what_the_unit_says(two: Recorded) -> None:
    """The described size is the size of the collective, in the gathered dtype."""
    for scenario in ("block", "mixed_precision", "tied", "frozen"):
        data = two.rank(scenario)
        spans = data.steps[1].spans
        for unit, size, kind in zip(spans.unit, spans.bytes, spans.kind, strict=True):
            if kind == Kind.ALL_GATHER:
                assert data.header.units[int(unit)].unsharded_bytes == size


def test_mixed_precision_halves_the_gather(two: Recorded) -> None:
    """bf16 is gathered, fp32 stored and reduced."""
    block = two.rank("mixed_precision").header.units[1]

    assert (block.orig_dtype, block.param_dtype, block.reduce_dtype) == (
        "float32",
        "bfloat16",
        "float32",
    )
    assert (block.gather_dtype, block.unsharded_bytes) == ("bfloat16", 1088)


def test_flags_that_change_between_micro_batches_are_not_one_value(
    two: Recorded,
) -> None:
    """Accumulation turns the sync on for the last micro-batch only."""
    steady = two.rank("accumulate").header.units[1]
    changing = two.rank("accumulate_keep").header.units[1]

    assert (steady.requires_gradient_sync, steady.reshard_after_backward) == (
        True,
        True,
    )
    assert (changing.requires_gradient_sync, changing.reshard_after_backward) == (
        None,
        None,
    )


def test_groups_and_grouped_units_have_names_of_their_own(two: Recorded) -> None:
    """A list of modules is one unit; two groups of a module are two."""
    grouped = [u.fqn for u in two.rank("grouped").header.units]
    several = [u.fqn for u in two.rank("several_groups").header.units]
    roots = two.rank("several_roots").header.units

    assert grouped == ["embed", "layers.0", "layers.1", "layers.2", "layers.3, head"]
    assert several[:3] == [ROOT, "layers.0 [pg=2]", "layers.0 [pg=2] #2"]
    assert [(u.fqn, u.tree, u.is_root) for u in roots] == [
        (f"layers.{i}", i, True) for i in range(4)
    ]


def test_a_sub_mesh_tells_where_it_was_cut_from(four: Recorded) -> None:
    """The passed mesh has one dimension; the one it is of has two."""
    cut = four.rank("sub_mesh").header.units[0]
    whole = four.rank("hybrid").header.units[0]

    assert (cut.mesh, cut.parent_meshes) == ("(shard=2)", ("(rep=2, shard=2)",))
    assert (whole.mesh, whole.parent_meshes) == ("(rep=2, shard=2)", ())
    groups = four.rank("hybrid", 3).header.groups
    assert {(g.role, g.ranks) for g in groups} == {
        ("shard", (2, 3)),
        ("replicate", (1, 3)),
    }


def test_finds_parameters_outside_every_unit(two: Recorded) -> None:
    """Left out by accident, and left out on purpose."""
    model = model_of(two, "unmanaged")

    assert model.unmanaged_fqns == ("0.weight", "2.weight", "2.bias")
    assert (model.unmanaged_params, model.unmanaged_trainable) == (3, 3)
    assert model.unmanaged_numel == 32 * 16 * 2 + 32
    assert model.ignored_params == 2
    # Blocks alone: the model around them is found on the call stack.
    assert model_of(two, "several_roots").unmanaged_fqns == (
        "embed.weight",
        "head.weight",
        "head.bias",
    )


def test_describes_the_whole_model(two: Recorded) -> None:
    """Blocks, order, optimizer, ties."""
    model = model_of(two, "block")

    assert (model.wrapper, model.model_class, model.numel) == ("fsdp2", "Model", 3232)
    assert model.blocks == (
        BlockSpec(
            container="layers",
            module_class="Block",
            count=4,
            units=4,
            numel=544,
            model=0,
        ),
    )
    assert model.forward_order == (0, 1, 2, 3, 4)
    assert model.optimizers == (
        OptimizerSpec(
            optimizer_class="SGD", params=19, dtensors=19, stale=0, without_grad=0
        ),
    )
    assert model_of(two, "root_only").blocks[0].units == 0
    assert model_of(two, "tied").tied == (("embed.weight", "head.weight"),)


def test_an_optimizer_made_too_early_holds_what_is_gone(two: Recorded) -> None:
    """None of its parameters is the model's any more."""
    (optimizer,) = model_of(two, "stale_optimizer").optimizers

    assert (optimizer.params, optimizer.dtensors, optimizer.stale) == (19, 0, 19)
    assert optimizer.without_grad == 19


@pytest.mark.parametrize(
    ("scenario", "wrapper"), [("ddp", "ddp"), ("fsdp1", "fsdp1"), ("plain", "none")]
)
def test_names_what_wraps_a_model_without_fsdp2(
    two: Recorded, scenario: str, wrapper: str
) -> None:
    """Steps and micro-batches are there, units are not, and no evidence claims them."""
    data = two.rank(scenario)
    batches = 2 if scenario == "plain" else 1

    assert model_of(two, scenario).wrapper == wrapper
    assert data.header.units == ()
    assert Evidence.UNITS not in data.evidence
    assert [s.micro_batches for s in data.steps] == [batches] * 3
    assert [s.tokens for s in data.steps] == [12 * batches] * 3
    assert model_of(two, scenario).unmanaged_params == 0
