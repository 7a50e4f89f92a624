"""Frameworks that may be installed, each with a program of its own and a launcher."""

from __future__ import annotations

import importlib.util
import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "scripts" / "installed"

RANKS = 2

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")
ACCELERATE = (
    *(sys.executable, "-m", "accelerate.commands.launch"),
    *("--config_file", "{folder}/accelerate.yaml"),
)


def nothing(folder: Path) -> None:
    """No file is needed."""


def accelerate_file(folder: Path) -> None:
    """As `accelerate config` writes it."""
    lines = [
        "compute_environment: LOCAL_MACHINE",
        "distributed_type: FSDP",
        "fsdp_config:",
        "  fsdp_version: 2",
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        "  fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer",
        "  fsdp_reshard_after_forward: true",
        "machine_rank: 0",
        "main_training_function: main",
        "mixed_precision: 'no'",
        "num_machines: 1",
        f"num_processes: {RANKS}",
        "use_cpu: true",
    ]
    (folder / "accelerate.yaml").write_text("\n".join(lines), "utf-8")


def titan_assets(folder: Path) -> None:
    """The tokenizer and the texts that its debug model looks for here."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{at}": at for at in range(2000)}
    words |= {"<unk>": 2000, "<|begin_of_text|>": 2001, "<|end_of_text|>": 2002}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    assets = folder / "tests" / "assets"
    (assets / "tokenizer").mkdir(parents=True)
    made.save(str(assets / "tokenizer" / "tokenizer.json"))
    tokens = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    config = assets / "tokenizer" / "tokenizer_config.json"
    config.write_text(json.dumps(tokens), "utf-8")
    (assets / "c4_test").mkdir()
    rows = [
        json.dumps({"text": " ".join(f"w{(at * 7 + i) % 2000}" for i in range(200))})
        for at in range(200)
    ]
    (assets / "c4_test" / "data.json").write_text("\n".join(rows), "utf-8")


def tune_files(folder: Path) -> None:
    """A recipe's configuration, with a model, a tokenizer and texts of its own."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports is deprecated by now
        sentencepiece: Any = importlib.import_module("sentencepiece")
        llama2: Any = importlib.import_module("torchtune.models.llama2").llama2
    size = {
        "vocab_size": 64,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "embed_dim": 64,
        "max_seq_len": 64,
    }
    torch.manual_seed(0)
    (folder / "weights").mkdir()
    torch.save(llama2(**size).state_dict(), folder / "weights" / "model.pt")
    texts = [" ".join(f"{(at * 7 + i) % 100}" for i in range(30)) for at in range(24)]
    (folder / "texts.txt").write_text("\n".join(texts), "utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "texts.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=64,
        hard_vocab_limit=False,
    )
    rows = "\n".join(json.dumps({"text": text}) for text in texts)
    (folder / "texts.json").write_text(rows, "utf-8")
    component = "_component_"
    config = {
        "output_dir": str(folder / "tuned"),
        "tokenizer": {
            component: "torchtune.models.llama2.llama2_tokenizer",
            "path": str(folder / "tokenizer.model"),
            "max_seq_len": 32,
        },
        "dataset": {
            component: "torchtune.datasets.text_completion_dataset",
            "source": "json",
            "data_files": str(folder / "texts.json"),
            "split": "train",
        },
        "seed": 0,
        "shuffle": False,
        "model": {component: "torchtune.models.llama2.llama2", **size},
        "checkpointer": {
            component: "torchtune.training.FullModelTorchTuneCheckpointer",
            "checkpoint_dir": str(folder / "weights"),
            "checkpoint_files": ["model.pt"],
            "recipe_checkpoint": None,
            "output_dir": str(folder / "tuned"),
            "model_type": "LLAMA2",
        },
        "resume_from_checkpoint": False,
        "batch_size": 2,
        "epochs": 1,
        "optimizer": {component: "torch.optim.AdamW", "lr": 1e-3},
        "loss": {component: "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "max_steps_per_epoch": 3,
        "clip_grad_norm": 1.0,
        "gradient_accumulation_steps": 2,
        "device": "cpu",
        "dtype": "fp32",
        "metric_logger": {
            component: "torchtune.training.metric_logging.StdoutLogger",
        },
        "log_every_n_steps": 1,
    }
    # What is JSON is YAML.
    (folder / "tune.yaml").write_text(json.dumps(config), "utf-8")


def recipe(name: str) -> str:
    """What `tune run` starts with torchrun: a file beside the package."""
    found = importlib.util.find_spec("torchtune")
    if found is None or found.origin is None:
        return f"{name}.py"
    return str(Path(found.origin).parents[1] / "recipes" / f"{name}.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One framework's program, and what a step of it is to its user."""

    name: str
    needs: tuple[str, ...]
    launch: tuple[str, ...] = TORCHRUN
    target: tuple[str, ...]
    stand_in: str = ""
    steps: int = 6
    micro_batches: int = 2
    dialect: str = ""  # none: what-if has no words for it
    losses: str = r"^loss (.+)$"
    files: Callable[[Path], None] = nothing
    resharded: tuple[str, ...] = ()  # units that something else reshards, too

    def __str__(self) -> str:
        return self.name


def _script(name: str, *args: str) -> tuple[str, ...]:
    return (str(PROGRAMS / f"{name}.py"), *args)


_TITAN = (
    *("-m", "torchtitan.train", "--module", "llama3", "--config"),
    *("llama3_debugmodel", "--training.steps", "6", "--training.seq_len", "64"),
    *("--training.local_batch_size", "2", "--training.global_batch_size", "8"),
    # Its default asks more of torch than torch 2.13 has.
    *("--parallelism.spmd_backend", "partial_dtensor", "--debug.seed", "0"),
)

INSTALLED = [
    Program(
        name="lightning-trainer",
        needs=("lightning",),
        target=_script("lightning_trainer"),
        steps=8,
        dialect="lightning",
    ),
    Program(
        name="lightning-fabric",
        needs=("lightning",),
        target=_script("fabric_loop"),
        steps=8,
        micro_batches=1,
        dialect="fabric",
    ),
    *(
        Program(
            name=name,
            needs=("accelerate", "transformers", *needs),
            launch=ACCELERATE,
            target=target,
            stand_in="accelerate",
            dialect="accelerate",
            files=accelerate_file,
        )
        for name, needs, target in (
            ("accelerate", (), _script("accelerate_loop")),
            ("transformers-trainer", (), _script("hf_trainer", "plain", "{folder}")),
            ("peft", ("peft",), _script("hf_trainer", "lora", "{folder}")),
            ("trl", ("trl", "datasets"), _script("trl_sft", "{folder}")),
        )
    ),
    Program(
        name="torchtitan",
        needs=("torchtitan",),
        target=_TITAN,
        stand_in="torchtitan",
        dialect="torchtitan",
        losses=r"step: +(\d+) .*loss: +([\d.]+)",
        files=titan_assets,
        resharded=("norm, lm_head",),  # by its loss, after its chunks
    ),
    Program(
        name="torchtune",
        needs=("torchtune", "torchao", "sentencepiece", "datasets"),
        target=(recipe("full_finetune_distributed"), "--config", "{folder}/tune.yaml"),
        stand_in="torchtune",
        steps=3,
        losses=r"Step (\d+) \| loss:(\S+)",
        files=tune_files,
    ),
]
