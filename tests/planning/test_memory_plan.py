"""Memory budgets: exact where they are arithmetic, compared where code exists."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from click.testing import CliRunner

from fsdpdoctor.cli import main
from fsdpdoctor.errors import InputError, UsageError
from fsdpdoctor.planning.memory_plan import (
    MemoryBudget,
    Training,
    activations,
    budgets,
    cost_of_tokens,
)
from fsdpdoctor.planning.meta_model import meta_model
from fsdpdoctor.planning.model_shape import (
    DEFAULTS,
    ModelShape,
    shape_of_config,
    shape_of_count,
    shape_of_params,
)

SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "intermediate_size": 160,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}

CONFIGS: dict[str, Any] = {
    "llama": transformers.LlamaConfig(**SMALL),
    "llama-tied": transformers.LlamaConfig(**SMALL, tie_word_embeddings=True),
    "llama-biased": transformers.LlamaConfig(
        **SMALL, attention_bias=True, mlp_bias=True
    ),
    "mistral": transformers.MistralConfig(**SMALL, head_dim=16),
    "qwen2": transformers.Qwen2Config(**SMALL),
    "qwen3": transformers.Qwen3Config(**SMALL, head_dim=16),
    "mixtral": transformers.MixtralConfig(**SMALL, num_local_experts=4),
    "gpt2": transformers.GPT2Config(
        n_embd=64, n_layer=3, n_head=4, vocab_size=500, n_positions=128
    ),
    "gpt2-untied": transformers.GPT2Config(
        n_embd=64, n_layer=3, n_head=4, vocab_size=500, tie_word_embeddings=False
    ),
    "gpt2-crossed": transformers.GPT2Config(
        n_embd=64, n_layer=3, n_head=4, vocab_size=500, add_cross_attention=True
    ),
}


def saved(config: Any, folder: Path) -> ModelShape:
    """A configuration, as its own library writes it, read back."""
    config.save_pretrained(folder)
    return shape_of_config(folder / "config.json")


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_has_the_parameters_of_its_own_code(name: str, tmp_path: Path) -> None:
    """As many as transformers makes, in blocks of the same size."""
    shape = saved(CONFIGS[name], tmp_path)
    make: Any = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = make(CONFIGS[name])
    base = model.base_model
    blocks = base.h if name.startswith("gpt2") else base.layers

    assert shape.numel == sum(p.numel() for p in model.parameters())
    assert [sum(p.numel for p in block) for block in shape.blocks] == [
        sum(p.numel() for p in block.parameters()) for block in blocks
    ]


@pytest.mark.parametrize("kind", DEFAULTS)
def test_what_a_file_leaves_out_is_as_its_library_has_it(
    kind: str, tmp_path: Path
) -> None:
    """A file that says its kind alone is the model that transformers makes of it."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": kind}))
    shape = shape_of_config(path)
    make: Any = transformers.AutoModelForCausalLM.from_config
    with torch.device("meta"):
        model = make(transformers.AutoConfig.for_model(kind))

    assert shape.numel == sum(p.numel() for p in model.parameters())
    assert shape.assumed == tuple(DEFAULTS[kind])


def test_what_was_taken_from_the_library_is_said(tmp_path: Path) -> None:
    """The reader sees which settings the file did not give."""
    given = {**SMALL, "model_type": "mistral", "tie_word_embeddings": False}
    del given["num_key_value_heads"], given["vocab_size"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(given))
    result = CliRunner().invoke(main, ["plan", str(path)])

    assert shape_of_config(path).assumed == ("vocab_size", "num_key_value_heads")
    assert (
        "not in the file, as transformers takes them: vocab_size, num_key_value_heads"
        in result.stdout.splitlines()
    )


def test_a_tied_matrix_has_three_gradients_as_backward_ends(tmp_path: Path) -> None:
    """One of each use, and their sum; the matrix is still gathered beside them."""
    how = Training(world_size=4, batch=1, sequence=1)
    large = {**SMALL, "vocab_size": 20_000}
    shape = saved(transformers.LlamaConfig(**large, tie_word_embeddings=True), tmp_path)
    untied = replace(shape, tied_numel=0)  # as if its head had no gradient of its own
    matrix, norm = 20_000 * 64, 64  # what the root has
    block = sum(p.numel for p in shape.blocks[0])
    zero3, of_one_use = (budgets(each, how)[-2] for each in (shape, untied))

    assert shape.tied_numel == matrix
    assert zero3.gathered == (matrix + norm) * 2
    assert zero3.gradients == (3 * matrix + norm) * 2 + 3 * block * 4 // 4
    assert of_one_use.gradients < 2 * 2 * matrix


def test_logits_are_there_four_times(tmp_path: Path) -> None:
    """As the script holds them, and three times in float32 in the loss's backward."""
    how = Training(world_size=4, batch=2, sequence=256)
    shape = saved(CONFIGS["llama"], tmp_path)
    of_blocks = activations(replace(shape, vocabulary=0), how)
    whole = activations(shape, how)

    assert whole is not None
    assert of_blocks is not None
    assert whole - of_blocks == 2 * 256 * 500 * (2 + 3 * 4)


def test_ddp_is_arithmetic() -> None:
    """Float32 weights, gradients and buckets, bfloat16 copies, two moments."""
    shape = shape_of_count("1000", 10)
    assert budgets(shape, Training(world_size=4))[0] == MemoryBudget(
        strategy="ddp",
        parameters=4000,
        optimizer=8000,
        gradients=4000,
        gathered=2000,
        buffers=4000,
        activations=None,
    )


def test_zero3_holds_what_fsdp2_does() -> None:
    """At the peak of ten equal blocks over four ranks, by FSDP2's own rules.

    In backward: the block at work and the one prefetched, whose gather's output is
    still there; the block's gradients in bfloat16; the input of one reduction.
    """
    shape = shape_of_count("4000", 10)
    zero3 = next(
        b for b in budgets(shape, Training(world_size=4)) if b.strategy == "zero3"
    )

    assert (zero3.parameters, zero3.optimizer) == (4000, 8000)
    assert zero3.activations is None
    # What is unsharded at once never exceeds two blocks and two gathers' outputs.
    assert zero3.gathered <= 4 * 400 * 2
    assert zero3.gradients + zero3.gathered + zero3.buffers < 4000 * 4
    assert zero3.total == 12000 + zero3.gradients + zero3.gathered + zero3.buffers


def test_more_sharding_never_needs_more(tmp_path: Path) -> None:
    """From DDP to ZeRO-3 with offload; replicas need more; checkpointing less."""
    shape = saved(CONFIGS["llama"], tmp_path)
    how = Training(world_size=8, batch=2, sequence=128)
    plain = [b.total for b in budgets(shape, how)]
    again = [b.total for b in budgets(shape, replace(how, checkpointing=True))]

    hybrid = {b.strategy: b.total for b in budgets(shape, replace(how, replicas=2))}

    assert plain == sorted(plain, reverse=True)
    assert hybrid["hsdp"] > hybrid["zero3"]
    assert all(a < b for a, b in zip(again, plain, strict=True))


def test_activations_by_hand(tmp_path: Path) -> None:
    """Ten tokens of a small Llama in bfloat16, every saved tensor counted."""
    shape = saved(CONFIGS["llama"], tmp_path)
    how = Training(world_size=8, batch=1, sequence=10)
    ddp = budgets(shape, how)[0]
    hidden, inner, keys, vocabulary = 64, 160, 16, 500
    block = 4 * hidden + 2 * hidden + 2 * keys + 4 * inner

    assert ddp.activations == 10 * (3 * 2 * block + vocabulary * (2 + 3 * 4))


def test_cost_of_a_billion_tokens() -> None:
    """A thousand tokens a second on each of ten devices, at two an hour."""
    hours, money = cost_of_tokens(10**9, 1000.0, 10, 2.0)

    assert round(hours, 3) == 27.778
    assert money is not None
    assert round(money, 2) == 555.56


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nothing", "is no model"),
        ("0.5", "do not fill"),
    ],
)
def test_numbers_that_are_none(text: str, said: str) -> None:
    """What is no count of parameters is refused with what was expected."""
    with pytest.raises(UsageError, match=said):
        shape_of_count(text, 4)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON: maximum recursion depth"),
        ("[]", "model_type None"),
        ('{"model_type": "whisper"}', "module:factory"),
        (
            json.dumps({"model_type": "llama", **SMALL, "num_attention_heads": 0}),
            "makes no sense",
        ),
    ],
)
def test_configs_that_are_none(content: str, said: str, tmp_path: Path) -> None:
    """Each is refused in one sentence."""
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(InputError, match=said):
        shape_of_config(path)


FACTORY = """
from torch import nn

def make():
    return nn.Sequential(
        nn.Embedding(10, 4), nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    )

def number():
    return 3

def broken():
    raise RuntimeError("no disk")

def tied():
    model = make().bfloat16()
    model.append(nn.Linear(4, 10, bias=False, dtype=model[0].weight.dtype))
    model[2].weight = model[0].weight
    return model
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `plan_factories` in the working folder."""
    (tmp_path / "plan_factories.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("factories")
def test_a_factory_is_looked_at_without_memory() -> None:
    """Blocks are the siblings of one class; the rest is the root's."""
    made = meta_model("plan_factories:make")
    shape = shape_of_params("make", made.params, made.blocks)

    assert made.blocks == ("1.0", "1.1", "1.2")
    assert [sum(p.numel for p in block) for block in shape.blocks] == [20, 20, 20]
    assert [(p.fqn, p.numel) for p in shape.root] == [("0.weight", 40)]


@pytest.mark.usefixtures("factories")
def test_a_factory_says_dtype_and_ties() -> None:
    """Parameters made in bfloat16 are stored so; a shared table is counted once."""
    made = meta_model("plan_factories:tied")
    shape = shape_of_params("tied", made.params, made.blocks)
    result = CliRunner().invoke(main, ["plan", "plan_factories:tied", "--json"])
    ddp = json.loads(result.stdout)["budgets"][0]

    assert (shape.dtype, shape.tied_numel, shape.numel) == ("bfloat16", 40, 100)
    assert ddp["parameters"] == 100 * 2


@pytest.mark.usefixtures("factories")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing_module:make", "cannot import"),
        ("plan_factories:nothing", "has no function nothing"),
        ("plan_factories:number", "returned a int"),
        ("plan_factories:broken", "RuntimeError: no disk"),
    ],
)
def test_factories_that_fail(name: str, said: str) -> None:
    """The user's own error is said, without a traceback."""
    with pytest.raises(UsageError, match=said):
        meta_model(name)


def test_the_command_prints_json(tmp_path: Path) -> None:
    """Every strategy twice, with the verdict on a size."""
    CONFIGS["llama"].save_pretrained(tmp_path)
    result = CliRunner().invoke(
        main,
        [
            *("plan", str(tmp_path), "--world-size", "4", "--json"),
            *("--batch", "1", "--sequence", "64", "--fits", "1MiB"),
            *("--tokens-per-second", "1e6", "--price", "3"),
        ],
    )
    content = json.loads(result.stdout)

    assert result.exit_code == 0
    assert [(b["strategy"], b["checkpointing"]) for b in content["budgets"]] == [
        (strategy, checkpointing)
        for checkpointing in (False, True)
        for strategy in ("ddp", "zero1", "zero2", "zero3", "offload")
    ]
    assert [b["fits"] for b in content["budgets"]] == [
        b["total"] <= 1 << 20 for b in content["budgets"]
    ]
    assert content["per_billion_tokens"]["hours"] == 10**9 / 4e6 / 3600


def test_the_command_draws_a_bar_for_each_strategy(tmp_path: Path) -> None:
    """The longest is DDP's, and unknown activations are said to be."""
    result = CliRunner().invoke(main, ["plan", "7B", "--layers", "32"])
    lines = result.stdout.splitlines()
    bars = [line.split()[1] for line in lines if line.startswith("     ddp ")]

    assert result.exit_code == 0
    assert [len(bar) for bar in bars] == [50]
    assert "activations are not in it" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["70B"], "in how many blocks"),
        (["70B", "--layers", "80", "--batch", "1"], "go together"),
        (["70B", "--layers", "80", "--price", "2"], "--tokens-per-second"),
        (["70B", "--layers", "80", "--fits", "much"], "80GiB"),
        (["70B", "--layers", "80", "--replicas", "3"], "cannot be 3 replicas"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], said: str) -> None:
    """Exit status 2, and what to do instead."""
    result = CliRunner().invoke(main, ["plan", *arguments])

    assert result.exit_code == 2
    assert said in result.stderr
