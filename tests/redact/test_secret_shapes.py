"""What secrets look like under no name; all made up, in pieces."""

from __future__ import annotations

from base64 import b64encode

import pytest

from fsdpdoctor.redact import HIDDEN, text

WORD = "qwertzword12qwertz"


@pytest.mark.parametrize(
    "secret",
    [
        *(f"{begin}_{WORD}" for begin in ("whsec", "figd", "sntrys", "secret", "phc")),
        *(f"{begin}_{WORD}" for begin in ("glsa", "sgp", "shippo_live", "pscale_pw")),
        *(f"{begin}-{WORD}" for begin in ("tskey", "xai", "pplx", "PMAK", "CFPAT")),
        *(f"{begin}-{WORD}" for begin in ("glcbt", "gloas", "NRAK", "sq0atp", "key")),
        "AGE-SECRET-" + "KEY-1QWERTZWORD",
        "LTAI" + "5tqwertzword12",
        "AKCp" + "8qwertzword12",
        "ATATT3x" + "FfGF0qwertzword",
        "a7Bc-9dE2_fGh4Ij-K6lMnO8p",  # random, in the letters of addresses
        "abc8Q~" + "qwertzWord1234567890abcdefghijk",
    ],
)
def test_keys_of_services(secret: str) -> None:
    """By their beginnings, wherever they stand."""
    assert text(f"got {secret}, n", ()) == f"got {HIDDEN}, n"


@pytest.mark.parametrize(
    "words",
    [
        *("secret_sharing_layer", "key-value", "phc_layer", "glc_ratio", "xai-org"),
        *("EAACConvolution", "oy2", "figd_3", "model.layers.11.self_attn.q_proj"),
        *("mistralai/Mixtral-8x22B-Instruct-v0.1", "Qwen2.5-72B-Instruct-GPTQ-Int4"),
        *(
            "llama3_8B_bs64_lr3e4_cosine_warmup2000",
            "TheBloke/CodeLlama-34B-Instruct-AWQ",
        ),
    ],
)
def test_words_that_only_begin_so(words: str) -> None:
    """Names of modules and options stay."""
    assert text(words, ()) == words


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (
            "-----BEGIN PGP PRIVATE KEY BLOCK-----",
            "-----END PGP PRIVATE KEY BLOCK-----",
        ),
        (
            "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----",
            "---- END SSH2 ENCRYPTED PRIVATE KEY ----",
        ),
        ("PuTTY-User-Key-File-2: ssh-rsa", ""),
    ],
)
def test_private_keys(begin: str, end: str) -> None:
    """Of every kind, to their ends; of a kind without one, all that follows."""
    assert text(f"a\n{begin}\nqwertz\n{end}", ()) == f"a\n{HIDDEN}"


def test_webhooks() -> None:
    """The part that lets one write."""
    at = "https://h.example/webhook/a@b/IncomingWebhook/"
    assert text(f"{at}qwertz/x", ()).endswith(f"/IncomingWebhook/{HIDDEN}")


def test_text_in_base64() -> None:
    """What can be read once it is decoded; a name of as many letters is none."""
    encoded = b64encode(b'{"alg": "HS256"}.{"sub": 1}').decode()
    words = f"got {encoded}, {encoded.rstrip('=')} TransformerEncoderLayer2Forward"

    assert text(words, ()) == f"got {HIDDEN}, {HIDDEN} TransformerEncoderLayer2Forward"
