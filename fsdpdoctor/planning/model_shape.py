"""ModelShape: parameters and activations of a model, from numbers or a config file.

No torch and no transformers: a Hugging Face `config.json` is read as what it is. What
is not known (activations of a model given by its parameter count) stays unknown.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import msgspec

from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.quantities import parse_number
from fsdpdoctor.simulate.engine.step import Param
from fsdpdoctor.storage.regular_file import MOST_HEADER, read_regular


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
    tied_numel: int = 0  # of the matrix that embeds and projects back, where one does
    assumed: tuple[str, ...] = ()  # settings that its file leaves to the library
    dtype: str | None = None  # its parameters', where they have been made

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

    @property
    def dtype(self) -> str: ...

    @property
    def projects_back(self) -> bool: ...


def shape_of_params(
    name: str, params: Iterable[NamedParam], blocks: Sequence[str]
) -> ModelShape:
    """A model by its parameters; those below no block are the root's.

    Its dtype is that of most elements.
    """
    of_block: dict[str, list[Param]] = {fqn: [] for fqn in blocks}
    root: list[Param] = []
    of_dtype: Counter[str] = Counter()
    tied_numel = 0
    for p in params:
        rows = p.shape[0] if p.shape else 1
        numel = math.prod(p.shape)
        row = numel // rows if rows else 0
        of_dtype[p.dtype] += numel
        tied_numel += numel * p.projects_back
        param = Param(fqn=p.fqn, rows=rows, row=row, trainable=p.trainable)
        at = next((b for b in blocks if p.fqn.startswith(f"{b}.")), None)
        (root if at is None else of_block[at]).append(param)
    return ModelShape(
        name=name,
        root=tuple(root),
        blocks=tuple(tuple(found) for found in of_block.values() if found),
        tied_numel=tied_numel,
        dtype=max(of_dtype, key=of_dtype.__getitem__, default=None),
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


_LLAMA: Mapping[str, Any] = {
    "vocab_size": 32_000,
    "hidden_size": 4_096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "tie_word_embeddings": False,
}
_MISTRAL = {**_LLAMA, "intermediate_size": 14_336, "num_key_value_heads": 8}
_QWEN2 = {
    **_LLAMA,
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
}

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "qwen2": _QWEN2,
    "qwen3": {**_QWEN2, "head_dim": 128},
    "mixtral": {**_MISTRAL, "num_local_experts": 8, "num_experts_per_tok": 2},
    "gpt2": {
        "vocab_size": 50_257,
        "n_positions": 1_024,
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "tie_word_embeddings": True,
        "add_cross_attention": False,
    },
}
"""Families known parameter by parameter, and what transformers takes where a file says
nothing. Tests compare each with its own code."""


def shape_of_config(path: Path) -> ModelShape:
    """The model of a Hugging Face `config.json`. Raises InputError."""
    try:
        config: Any = msgspec.json.decode(read_regular(path, MOST_HEADER))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}") from None
    kind = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(kind, str) or kind not in DEFAULTS:
        raise InputError(
            f"{path} has model_type {kind!r}; known are {', '.join(DEFAULTS)}. Give "
            "another model as module:factory, a function that makes it"
        )
    defaults = DEFAULTS[kind]
    assumed = tuple(name for name in defaults if name not in config)
    try:
        read = _gpt2 if kind == "gpt2" else _decoder
        return replace(read(path.name, {**defaults, **config}), assumed=assumed)
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
    experts = int(config["num_local_experts"]) if kind == "mixtral" else 1
    active = int(config["num_experts_per_tok"]) if experts > 1 else 1
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
    tied = bool(config["tie_word_embeddings"])
    if not tied:
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
        tied_numel=vocabulary * hidden if tied else 0,
    )


def _gpt2_block(at: str, hidden: int, inner: int, *, crossed: bool) -> list[Param]:
    """A block, with attention to an encoder's tokens, too, where it is crossed."""
    norms = ["ln_1", "ln_2"]
    layers = [
        ("attn.c_attn", hidden, 3 * hidden),
        ("attn.c_proj", hidden, hidden),
        ("mlp.c_fc", hidden, inner),
        ("mlp.c_proj", inner, hidden),
    ]
    if crossed:
        norms.append("ln_cross_attn")
        layers += [
            ("crossattention.c_attn", hidden, 2 * hidden),
            ("crossattention.q_attn", hidden, hidden),
            ("crossattention.c_proj", hidden, hidden),
        ]
    block = [p for n in norms for p in _matrix(f"{at}.{n}", hidden, 1, bias=True)]
    for fqn, rows, row in layers:
        # Conv1D keeps its weight transposed: the bias has `row` elements.
        block += _matrix(f"{at}.{fqn}", rows, row)
        block.append(Param(fqn=f"{at}.{fqn}.bias", rows=row, row=1))
    return block


def _gpt2(name: str, config: Mapping[str, Any]) -> ModelShape:
    hidden, layers = int(config["n_embd"]), int(config["n_layer"])
    inner = int(config.get("n_inner") or 4 * hidden)
    crossed, tied = config["add_cross_attention"], config["tie_word_embeddings"]
    blocks = [
        tuple(_gpt2_block(f"transformer.h.{i}", hidden, inner, crossed=bool(crossed)))
        for i in range(layers)
    ]
    vocabulary = int(config["vocab_size"])
    root = _matrix("transformer.wte", vocabulary, hidden)
    root += _matrix("transformer.wpe", int(config["n_positions"]), hidden)
    root += _matrix("transformer.ln_f", hidden, 1, bias=True)
    if not tied:
        root += _matrix("lm_head", vocabulary, hidden)
    # Norms' inputs and outputs, queries, keys, values, attention's output, the MLP's
    # first output, its activation.
    kept = 4 * hidden + 3 * hidden + hidden + 2 * inner
    of_block = BlockActivations(
        kept=kept, input=hidden, scores_per_key=int(config["n_head"])
    )
    return ModelShape(
        name=name,
        root=tuple(root),
        blocks=tuple(blocks),
        activations=None if crossed else of_block,  # the encoder's tokens are unknown
        vocabulary=vocabulary,
        tied_numel=vocabulary * hidden if tied else 0,
    )
