"""Hugging Face's Trainer with FSDP2: hf_trainer.py plain|lora FOLDER."""

from __future__ import annotations

import sys
from typing import Any

import llama
from advice import pasted
from transformers import Trainer, TrainerCallback, TrainingArguments

STEPS = 6


class Said(TrainerCallback):
    """Prints losses, and holds what advice puts into `on_train_begin`."""

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **_: Any
    ) -> None:
        """The model is sharded."""
        exec(pasted("after"), {"model": model})

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any
    ) -> None:
        """One line a step."""
        if state.is_world_process_zero and "loss" in logs:
            print("loss", repr(logs["loss"]), repr(logs["grad_norm"]), flush=True)


def train(trainer: Any) -> None:
    """With advice that goes before it."""
    scope = {"accelerator": trainer.accelerator, "model": trainer.model}
    exec(pasted("before"), scope)
    trainer.train()


def main() -> None:
    """Two batches a step."""
    model = llama.model()
    if sys.argv[1] == "lora":
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
        model = get_peft_model(model, config)
    arguments = TrainingArguments(
        output_dir=sys.argv[2],
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    rows: Any = [{"input_ids": row, "labels": row} for row in llama.rows()]
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Said()])
    train(trainer)


if __name__ == "__main__":
    main()
