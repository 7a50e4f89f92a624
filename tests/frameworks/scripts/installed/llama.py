"""A small Llama of `transformers`, made without a download."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY, LENGTH = 128, 32


def model() -> Any:
    """Three layers."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=LENGTH,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config)


def tokenizer() -> Any:
    """A word is a token."""
    words = {f"w{at}": at for at in range(VOCABULARY - 2)}
    words |= {"<unk>": VOCABULARY - 2, "</s>": VOCABULARY - 1}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token="</s>", pad_token="</s>", unk_token="<unk>"
    )


def rows(count: int = 64) -> torch.Tensor:
    """Tokens."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, VOCABULARY - 2, (count, LENGTH), generator=generator)
