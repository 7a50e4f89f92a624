"""Accelerate: a loop of one's own, two batches a step, clipped."""

from __future__ import annotations

import llama
import torch
from accelerate import Accelerator
from advice import pasted
from torch.utils.data import DataLoader

STEPS = 6


def main() -> None:
    """Half of the batches end a step."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = llama.model()
    scope = {"accelerator": accelerator, "model": model}
    exec(pasted("before"), scope)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: 0.9**at)
    data = DataLoader(llama.rows(), batch_size=2)
    model, optimizer, data, schedule = accelerator.prepare(
        model, optimizer, data, schedule
    )
    exec(pasted("after"), {"model": model})
    steps = 0
    for rows in data:
        with accelerator.accumulate(model):
            loss = model(input_ids=rows, labels=rows).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.print("loss", repr(loss.item()), flush=True)
        steps += accelerator.sync_gradients
        if steps == STEPS:
            break


if __name__ == "__main__":
    main()
