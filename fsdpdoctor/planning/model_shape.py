"""ModelShape: parameters and activations of a model, from numbers or a config file.

No torch and no transformers: a Hugging Face `config.json` is read as what it is. What
is not known (activations of a model given by its parameter count) stays unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.quantities import parse_number
from fsdpdoctor.simulate.engine.step import Param


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockActivations:
    """Elements that one block's backward needs, per token."""

    kept: int  # saved tensors in the compute dtype, the block's input among them
    input: int  # the block's input alone: what a checkpoint keeps
    scores_per_key: int = 0  # attention weights, for each token of the sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A model: what is in its root, and its blocks."""

    name: str
    root: tuple[Param, ...]
    blocks: tuple[tuple[Param, ...], ...]
    activations: BlockActivations | None = None  # None: not known
    vocabulary: int = 0  # elements of logits, per token

    @property
    def numel(self) -> int:
        every = [*self.root, *(p for block in self.blocks for p in block)]
        return sum(p.numel for p in every)

    @property
    def trainable_numel(self) -> int:
        every = [*self.root, *(p for block in self.blocks for p in block)]
        return sum(p.numel for p in every if p.trainable)


class NamedParam(Protocol):
    """A parameter as whoever looked at a real model names it."""

    @property
    def fqn(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def trainable(self) -> bool: ...


def shape_of_params(
    name: str, params: Iterable[NamedParam], blocks: Sequence[str]
) -> ModelShape:
    """A model by its parameters; those below no block are the root's."""
    of_block: dict[str, list[Param]] = {fqn: [] for fqn in blocks}
    root: list[Param] = []
    for p in params:
        rows = p.shape[0] if p.shape else 1
        numel = math.prod(p.shape)
        row = numel // rows if rows else 0
        param = Param(fqn=p.fqn, rows=rows, row=row, trainable=p.trainable)
        at = next((b for b in blocks if p.fqn.startswith(f"{b}.")), None)
        (root if at is None else of_block[at]).append(param)
    return ModelShape(
        name=name,
        root=tuple(root),
        blocks=tuple(tuple(found) for found in of_block.values() if found),
    )


def shape_of_count(text: str, layers: int) -> ModelShape:
    """A model of so many parameters (`7B`), all of them in equal blocks."""
    numel = parse_number(text)
    if numel is None:
        raise UsageError(
            f"{text!r} is no model: expected a number of parameters (7B), a Hugging "
            "Face config.json, or module:factory"
        )
    if layers < 1 or numel < layers:
        raise UsageError(f"{numel} parameters do not fill {layers} layers")
    each = numel // layers
    blocks = tuple((Param(fqn=f"layers.{i}", rows=each, row=1),) for i in range(layers))
    rest = numel - each * layers
    root = (Param(fqn="rest", rows=rest, row=1),) if rest else ()
    return ModelShape(name=text, root=root, blocks=blocks)


KNOWN = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "gpt2")
"""Families known parameter by parameter; tests compare each with its own code."""


def shape_of_config(path: Path) -> ModelShape:
    """The model of a Hugging Face `config.json`. Raises InputError."""
    try:
        config: Any = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except msgspec.DecodeError as error:
        raise InputError(f"{path} is no JSON: {error}") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if kind not in KNOWN:
        raise InputError(
            f"{path} has model_type {kind!r}; known are {', '.join(KNOWN)}. Give "
            "another model as module:factory, a function that makes it"
        )
    try:
        if kind == "gpt2":
            return _gpt2(path.name, config)
        return _decoder(path.name, config)
    except KeyError as error:
        raise InputError(f"{path} lacks {error.args[0]}") from None
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"{path} has a value that makes no sense: {error}") from None


def _matrix(fqn: str, rows: int, row: int, *, bias: bool = False) -> list[Param]:
    """A linear layer's parameters."""
    found = [Param(fqn=f"{fqn}.weight", rows=int(rows), row=int(row))]
    if bias:
        found.append(Param(fqn=f"{fqn}.bias", rows=int(rows), row=1))
    return found


def _decoder(name: str, config: Mapping[str, Any]) -> ModelShape:
    """Llama and its kin: norms, grouped attention, a gated MLP or several."""
    kind, hidden = config["model_type"], int(config["hidden_size"])
    heads = int(config["num_attention_heads"])
    key_heads = int(config.get("num_key_value_heads") or heads)
    size = int(config.get("head_dim") or hidden // heads)
    inner, layers = int(config["intermediate_size"]), int(config["num_hidden_layers"])
    queries, keys = heads * size, key_heads * size
    bias = bool(config.get("attention_bias", False)) or kind == "qwen2"
    experts = int(config.get("num_local_experts") or 1) if kind == "mixtral" else 1
    active = int(config.get("num_experts_per_tok") or 1) if experts > 1 else 1
    blocks = []
    for i in range(layers):
        at = f"model.layers.{i}"
        block = [
            *_matrix(f"{at}.self_attn.q_proj", queries, hidden, bias=bias),
            *_matrix(f"{at}.self_attn.k_proj", keys, hidden, bias=bias),
            *_matrix(f"{at}.self_attn.v_proj", keys, hidden, bias=bias),
            *_matrix(
                f"{at}.self_attn.o_proj",
                hidden,
                queries,
                bias=bias and kind != "qwen2",
            ),
        ]
        if kind == "qwen3":
            block += _matrix(f"{at}.self_attn.q_norm", size, 1)
            block += _matrix(f"{at}.self_attn.k_norm", size, 1)
        if experts > 1:
            block += _matrix(f"{at}.mlp.gate", experts, hidden)
            block += _matrix(f"{at}.mlp.experts.gate_up", experts, 2 * inner * hidden)
            block += _matrix(f"{at}.mlp.experts.down", experts, inner * hidden)
        else:
            mlp_bias = bool(config.get("mlp_bias", False))
            block += _matrix(f"{at}.mlp.gate_proj", inner, hidden, bias=mlp_bias)
            block += _matrix(f"{at}.mlp.up_proj", inner, hidden, bias=mlp_bias)
            block += _matrix(f"{at}.mlp.down_proj", hidden, inner, bias=mlp_bias)
        block += _matrix(f"{at}.input_layernorm", hidden, 1)
        block += _matrix(f"{at}.post_attention_layernorm", hidden, 1)
        blocks.append(tuple(block))
    vocabulary = int(config["vocab_size"])
    root = _matrix("model.embed_tokens", vocabulary, hidden)
    root += _matrix("model.norm", hidden, 1)
    if not config.get("tie_word_embeddings", False):
        root += _matrix("lm_head", vocabulary, hidden)
    # Saved for backward, by operation: two norms (input), their outputs (into the
    # projections), rotated queries and keys, values, attention's output; gate, up,
    # activated gate, and their product (into the down projection).
    kept = 4 * hidden + 2 * queries + 2 * keys + 4 * inner * active
    return ModelShape(
        name=name,
        root=tuple(root),
        blocks=tuple(blocks),
        activations=BlockActivations(kept=kept, input=hidden, scores_per_key=heads),
        vocabulary=vocabulary,
    )


def _gpt2(name: str, config: Mapping[str, Any]) -> ModelShape:
    hidden, layers = int(config["n_embd"]), int(config["n_layer"])
    inner = int(config.get("n_inner") or 4 * hidden)
    blocks = []
    for i in range(layers):
        at = f"transformer.h.{i}"
        block = [
            *_matrix(f"{at}.ln_1", hidden, 1, bias=True),
            *_matrix(f"{at}.ln_2", hidden, 1, bias=True),
        ]
        for fqn, rows, row in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, inner),
            ("mlp.c_proj", inner, hidden),
        ):
            # Conv1D keeps its weight transposed: the bias has `row` elements.
            block += _matrix(f"{at}.{fqn}", rows, row)
            block.append(Param(fqn=f"{at}.{fqn}.bias", rows=row, row=1))
        blocks.append(tuple(block))
    vocabulary = int(config["vocab_size"])
    root = _matrix("transformer.wte", vocabulary, hidden)
    root += _matrix("transformer.wpe", int(config["n_positions"]), hidden)
    root += _matrix("transformer.ln_f", hidden, 1, bias=True)
    # Norms' inputs and outputs, queries, keys, values, attention's output, the MLP's
    # first output, its activation.
    kept = 4 * hidden + 3 * hidden + hidden + 2 * inner
    return ModelShape(
        name=name,
        root=tuple(root),
        blocks=tuple(blocks),
        activations=BlockActivations(
            kept=kept, input=hidden, scores_per_key=int(config["n_head"])
        ),
        vocabulary=vocabulary,
    )
