"""TRL's SFTTrainer: trl_sft.py FOLDER."""

from __future__ import annotations

import sys
from typing import Any

import llama
from datasets import Dataset
from hf_trainer import Said, train
from trl import SFTConfig, SFTTrainer

STEPS = 6


def main() -> None:
    """Two batches a step."""
    texts = [" ".join(f"w{token}" for token in row) for row in llama.rows().tolist()]
    arguments = SFTConfig(
        output_dir=sys.argv[1],
        max_steps=STEPS,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_length=llama.LENGTH,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    trainer: Any = SFTTrainer(
        llama.model(),
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=llama.tokenizer(),
        callbacks=[Said()],
    )
    train(trainer)


if __name__ == "__main__":
    main()
