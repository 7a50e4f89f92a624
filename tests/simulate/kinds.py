"""Kinds of model whose compute is known: each sharded and fed as its kind is.

Blocks compute by sleeps, on the host or as a kernel of a modelled device, so that a
run takes the same on every machine, and what a change makes of it can be predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from tests.simulate.networks import (
    DEPTH,
    WIDTH,
    Adapted,
    Again,
    Around,
    Experts,
    Pair,
    Pictures,
    Place,
    Row,
    Several,
    Skips,
    Towers,
    TwoSided,
    block,
)

Module = Any
"""A module that fully_shard may have made its own; the stubs know neither half."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of model, and how it is trained."""

    build: Callable[[Place], Module]  # sharded
    inputs: Callable[[str], torch.Tensor]
    micro_batches: int = 1
    sync_last: bool = False
    each_step: Callable[[Module, int], None] = lambda model, step: None
    plans: Mapping[str, Any] = field(default_factory=dict)  # changes of its own


def tokens(device: str) -> torch.Tensor:
    """Of a language model."""
    return torch.ones(2, 2, dtype=torch.long, device=device)


def features(device: str) -> torch.Tensor:
    """As an embedding would make them: they need a gradient."""
    return torch.ones(2, WIDTH, device=device, requires_grad=True)


def plain(device: str) -> torch.Tensor:
    """As a data set gives them: nobody asks for their gradient."""
    return torch.ones(2, WIDTH, device=device)


def pictures(device: str) -> torch.Tensor:
    """Four patches each."""
    return torch.ones(2, 3, 8, 8, device=device)


# -- how they are sharded


def units(model: Module, parts: Iterable[Module], **told: Any) -> Module:
    """Each part a unit, then the root. The root is not told whether to reshard."""
    for part in parts:
        fully_shard(part, **told)
    told.pop("reshard_after_forward", None)
    return fully_shard(model, **told)


def row(place: Place, **how: Any) -> Module:
    """Six blocks on their device."""
    torch.manual_seed(0)
    return Row([block(place) for _ in range(DEPTH)], **how).to(place.device)


def rows_of(place: Place, layers: Callable[[], nn.Module], count: int = 4) -> Module:
    """Blocks of another sort in a row."""
    torch.manual_seed(0)
    return Row([layers() for _ in range(count)]).to(place.device)


def _stack(place: Place) -> Module:
    model = row(place)
    return units(model, model.layers)


def _bare(place: Place) -> Module:
    model = row(place, embeds=False, head=False)
    return units(model, model.layers)


def _nested(place: Place, *, before: bool, after: bool) -> Module:
    model = rows_of(
        place, lambda: Around(block(place), place, before=before, after=after)
    )
    for layer in model.layers:
        fully_shard(layer.inner)
    return units(model, model.layers)


def _checkpointed(place: Place, *, reentrant: bool) -> Module:
    model = row(place, reentrant=reentrant)
    return units(model, model.layers)


def _trunk(place: Place) -> Module:
    model = row(place)
    model.embed.requires_grad_(False)
    for layer in model.layers[:3]:
        layer.requires_grad_(False)
    return units(model, model.layers)


def _adapters(place: Place) -> Module:
    model = rows_of(place, lambda: Adapted(place), DEPTH)
    model.embed.requires_grad_(False)
    model.head.requires_grad_(False)
    return units(model, model.layers)


def _adapter_units(place: Place) -> Module:
    model = rows_of(place, lambda: Adapted(place))
    for layer in model.layers:
        fully_shard(layer.base)
    return units(model, model.layers)


def _uneven(place: Place) -> Module:
    torch.manual_seed(0)
    layers = [
        Several([block(place, 0.6) for _ in range(1 + at % 3)]) for at in range(DEPTH)
    ]
    model = Row(layers).to(place.device)
    return units(model, model.layers)


def _experts(place: Place) -> Module:
    model = rows_of(place, lambda: Experts(place))
    for layer in model.layers:
        fully_shard(layer.experts[0])
        fully_shard(layer.experts[1])
    return units(model, model.layers)


def _two_sided(place: Place) -> Module:
    torch.manual_seed(0)
    model = TwoSided(place).to(place.device)
    return units(model, [*model.encoder, *model.decoder])


def _towers(place: Place) -> Module:
    torch.manual_seed(0)
    model = Towers(place).to(place.device)
    return units(model, [*model.image, *model.text])


def _skips(place: Place) -> Module:
    torch.manual_seed(0)
    model = Skips(place).to(place.device)
    return units(model, [*model.down, *model.up])


def _replicated(place: Place) -> Module:
    model = row(place)
    mesh = init_device_mesh(
        place.device,
        (2, place.world_size // 2),
        mesh_dim_names=("replicate", "shard"),
    )
    return units(model, model.layers, mesh=mesh)


def _mixed(place: Place) -> Module:
    model = row(place)
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    return units(model, model.layers, mp_policy=policy)


def _listed(place: Place) -> Module:
    model = row(place)
    made = units(model, model.layers)
    made._set_unshard_async_op(place.device == "cpu")
    for at, layer in enumerate(made.layers):
        if ahead := list(made.layers)[at + 1 : at + 2]:
            layer.set_modules_to_forward_prefetch(ahead)
        if at:
            layer.set_modules_to_backward_prefetch([made.layers[at - 1]])
    return made


def _every_linear(place: Place) -> Module:
    model = rows_of(place, lambda: Around(block(place), place, before=True, after=True))
    parts = [
        m for layer in model.layers for m in (layer.before, layer.inner, layer.after)
    ]
    return units(model, parts)


def _one_unit(place: Place) -> Module:
    return fully_shard(row(place))


def _with_unused(place: Place) -> Module:
    model = row(place)
    model.skipped = {2}
    return units(model, model.layers)


def _tied(place: Place) -> Module:
    model = row(place)
    model.head.weight = model.embed.weight
    return units(model, model.layers)


def _pair(place: Place) -> Module:
    models = [rows_of(place, lambda: block(place, 0.5), 3) for _ in range(2)]
    return Pair(*(units(model, model.layers) for model in models))


def _again(place: Place) -> Module:
    torch.manual_seed(0)
    model = Again(place).to(place.device)
    return units(model, model.layers)


def _pictures(place: Place) -> Module:
    torch.manual_seed(0)
    model = Pictures(place).to(place.device)
    return units(model, model.layers)


def _compiled(place: Place) -> Module:
    model = row(place)
    for layer in model.layers:
        layer.compile(backend="eager")
    return units(model, model.layers)


def _wide_head(place: Place) -> Module:
    model = row(place)
    narrow = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16,
        reduce_dtype=torch.float32,
        output_dtype=torch.float32,
    )
    for layer in model.layers:
        fully_shard(layer, mp_policy=narrow)
    fully_shard(model.head)
    return fully_shard(model)


def _evaluate(model: Module, step: int) -> None:
    """Every other step a batch without gradients comes first."""
    if step % 2:
        model.eval()
        with torch.no_grad():
            model(tokens(next(model.parameters()).device.type))
        model.train()


def _drop(model: Module, step: int) -> None:
    """Every other step leaves a block out."""
    model.skipped = {3} if step % 2 else set()


KINDS: Mapping[str, Kind] = {
    "decoder": Kind(build=_stack, inputs=tokens),
    "blocks alone": Kind(build=_bare, inputs=features),
    "inner unit in the middle": Kind(
        build=lambda place: _nested(place, before=True, after=True), inputs=tokens
    ),
    "inner unit at the end": Kind(
        build=lambda place: _nested(place, before=True, after=False), inputs=tokens
    ),
    "inner unit at the start": Kind(
        build=lambda place: _nested(place, before=False, after=True), inputs=tokens
    ),
    "checkpointed": Kind(
        build=lambda place: _checkpointed(place, reentrant=False), inputs=tokens
    ),
    "checkpointed, reentrant": Kind(
        build=lambda place: _checkpointed(place, reentrant=True), inputs=tokens
    ),
    "frozen trunk": Kind(build=_trunk, inputs=tokens),
    "adapters": Kind(build=_adapters, inputs=tokens),
    "adapters, frozen units": Kind(build=_adapter_units, inputs=tokens),
    "uneven blocks": Kind(build=_uneven, inputs=tokens),
    "experts": Kind(build=_experts, inputs=tokens),
    "encoder and decoder": Kind(build=_two_sided, inputs=tokens),
    "two towers": Kind(build=_towers, inputs=plain),
    "U with skips": Kind(build=_skips, inputs=plain),
    "replicated": Kind(build=_replicated, inputs=tokens),
    "bfloat16": Kind(build=_mixed, inputs=tokens),
    "accumulating": Kind(build=_stack, inputs=tokens, micro_batches=3),
    "accumulating, reduced once": Kind(
        build=_stack, inputs=tokens, micro_batches=3, sync_last=True
    ),
    "lists of its own": Kind(build=_listed, inputs=tokens),
    "resharded to two": Kind(
        build=lambda place: units(
            model := row(place), model.layers, reshard_after_forward=2
        ),
        inputs=tokens,
    ),
    "kept after forward": Kind(
        build=lambda place: units(
            model := row(place), model.layers, reshard_after_forward=False
        ),
        inputs=tokens,
    ),
    "every linear": Kind(build=_every_linear, inputs=tokens),
    "one unit": Kind(build=_one_unit, inputs=tokens),
    "a block that never runs": Kind(build=_with_unused, inputs=tokens),
    "a block left out at times": Kind(build=_stack, inputs=tokens, each_step=_drop),
    "tied": Kind(build=_tied, inputs=tokens),
    "two roots": Kind(build=_pair, inputs=tokens),
    "blocks that run twice": Kind(build=_again, inputs=tokens),
    "pictures": Kind(build=_pictures, inputs=pictures),
    "compiled blocks": Kind(build=_compiled, inputs=tokens),
    "a head in float32": Kind(build=_wide_head, inputs=tokens),
    "evaluation between": Kind(build=_stack, inputs=tokens, each_step=_evaluate),
}
