"""Secrets never reach a run file."""

from __future__ import annotations

import pytest

from fsdpdoctor.recorder.storage.redact import HIDDEN, command, environment


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["train.py", "--lr", "1e-4"], ["train.py", "--lr", "1e-4"]),
        (["--api-key", "abc"], ["--api-key", HIDDEN]),
        (["--wandb_api_key=abc"], [f"--wandb_api_key={HIDDEN}"]),
        (["--hf-token", "abc", "--lr", "1"], ["--hf-token", HIDDEN, "--lr", "1"]),
        (["db.password=x"], [f"db.password={HIDDEN}"]),
        (["hf_abcdefghijkl"], [HIDDEN]),
        (["--x=sk-abcdefghijkl"], [f"--x={HIDDEN}"]),
        (["https://me:pw@host/x"], [f"https://{HIDDEN}@host/x"]),
        (["--id", "0123456789abcdef0123456789abcdef01234567"], ["--id", HIDDEN]),
        # Words that only contain those letters are no secrets.
        (["--max-tokens", "512"], ["--max-tokens", "512"]),
        (["--tokenizer", "bert"], ["--tokenizer", "bert"]),
        (["--monkey", "1"], ["--monkey", "1"]),
    ],
)
def test_hides_secrets_in_a_command(argv: list[str], shown: list[str]) -> None:
    """Values of secret options, and what looks like a key wherever it stands."""
    assert command(argv) == tuple(shown)


def test_keeps_only_the_environment_that_explains_a_run() -> None:
    """A list of names; nothing else is written, whatever it holds."""
    variables = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_SECRET_KEY": "abc",
        "TORCH_NCCL_ENABLE_TIMING": "1",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "HF_TOKEN": "hf_abcdefghijkl",
        "HOME": "/root",
        "MY_NCCL_THING": "1",
    }

    assert environment(variables) == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_SECRET_KEY": HIDDEN,
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_ENABLE_TIMING": "1",
    }
