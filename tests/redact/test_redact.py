"""Secrets never reach what is written: `docs/secrets.md`, rule by rule."""

from __future__ import annotations

import os
import sys

import pytest

from fsdpdoctor.redact import (
    HIDDEN,
    MOST_TEXT,
    command,
    environment,
    known_secrets,
    text,
)
from fsdpdoctor.redact.secret_names import is_secret_name

HF = "hf_" + "abcdefghijkl"
WANDB = "0123456789abcdef" * 2 + "01234567"
AWS = "wJalrXUtnFEMI/K7MDENG" + "/bPxRfiCYzEXAMPLEKE"
JWT = "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0.c2ln"


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (["train.py", "--lr", "1e-4"], ["train.py", "--lr", "1e-4"]),
        # Names
        (["--api-key", "abc"], ["--api-key", HIDDEN]),
        (["--wandb_api_key=abc"], [f"--wandb_api_key={HIDDEN}"]),
        (["--hf-token", "abc", "--lr", "1"], ["--hf-token", HIDDEN, "--lr", "1"]),
        (["--pass", "a b"], ["--pass", HIDDEN]),
        (["--dbPassword=a b"], [f"--dbPassword={HIDDEN}"]),
        (["db.password=x"], [f"db.password={HIDDEN}"]),
        (["+logger.auth_token=x"], [f"+logger.auth_token={HIDDEN}"]),
        (
            ["--api-keys", "a", "b", "--n", "1"],
            ["--api-keys", *[HIDDEN] * 2, "--n", "1"],
        ),
        (["--auth", "Bearer", "x", "y"], ["--auth", HIDDEN, HIDDEN, "y"]),
        (["--wandb-login=x"], [f"--wandb-login={HIDDEN}"]),
        (["--login", "me:x"], ["--login", f"me:{HIDDEN}"]),
        (["--pin", "1", "--pin-memory", "2"], ["--pin", HIDDEN, "--pin-memory", "2"]),
        (["-b", "session=x", "-b", "n=8"], ["-b", f"session={HIDDEN}", "-b", "n=8"]),
        (["--tokens", "a", "b", "-v"], ["--tokens", *[HIDDEN] * 3]),
        (["--tokens", "4096", "2e9", "1_000"], ["--tokens", "4096", "2e9", "1_000"]),
        (["--tokens=a,b", "--lr", "1"], [f"--tokens={HIDDEN}", "--lr", "1"]),
        (["--tokens=4096", "+tokens=7B"], ["--tokens=4096", "+tokens=7B"]),
        (["dXNlcjpwYXNzd29yZC1vZi1tZQ=="], [HIDDEN]),
        (["AKIAIOSFODNN7EXAMPLE=x"], [f"{HIDDEN}=x"]),
        (["mysql", "-h", "db", "-pletters"], ["mysql", "-h", "db", f"-p{HIDDEN}"]),
        (["7z", "x", "-pletters", "a.7z"], ["7z", "x", f"-p{HIDDEN}", "a.7z"]),
        (["--password", "=", "letters"], ["--password", "=", HIDDEN]),
        (["--lr", "=", "letters"], ["--lr", "=", "letters"]),
        (["train.py", "-pletters"], ["train.py", "-pletters"]),
        # Short options
        (["-p", "abc"], ["-p", HIDDEN]),
        (["-p=abc"], [f"-p={HIDDEN}"]),
        (["-pS3cret"], [f"-p{HIDDEN}"]),
        # Headers
        (["-H", "Authorization: Bearer abc"], ["-H", f"Authorization: {HIDDEN}"]),
        (["-H", "authorization: Basic YTpi=="], ["-H", f"authorization: {HIDDEN}"]),
        (["-H", "X-Api-Key: abc"], ["-H", f"X-Api-Key: {HIDDEN}"]),
        (["-H", "Cookie: a=b; c=d"], ["-H", f"Cookie: {HIDDEN}"]),
        # JSON and Python
        (
            ["--c", '{"db": {"password": ["a", 1]}, "n": [3]}'],
            ["--c", f'{{"db": {{"password": "{HIDDEN}"}}, "n": [3]}}'],
        ),
        (["--c={'token': 'a b', 'n': 3}"], [f"--c={{'token': '{HIDDEN}', 'n': 3}}"]),
        # URLs and connection strings
        (["https://me:pw@host/x"], [f"https://{HIDDEN}@host/x"]),
        (["redis://:p@w@host:1/0"], [f"redis://{HIDDEN}@host:1/0"]),
        (["me:pw@host"], [f"me:{HIDDEN}@host"]),
        (["https://h/x?sig=a&n=3"], [f"https://h/x?sig={HIDDEN}&n={HIDDEN}"]),
        (["Server=h;Password=x;User=u"], [f"Server=h;Password={HIDDEN};User=u"]),
        (["A=n;AccountKey=x==;E=s"], [f"A=n;AccountKey={HIDDEN};E=s"]),
        (["host=h password=x port=1"], [f"host=h password={HIDDEN} port=1"]),
        (["jdbc:oracle:thin:me/pw@h:1:x"], [f"jdbc:oracle:thin:me/{HIDDEN}@h:1:x"]),
        # Shapes
        ([HF], [HIDDEN]),
        (["--x=" + "sk-" + "abcdefghijkl"], [f"--x={HIDDEN}"]),
        (["--id", WANDB], ["--id", HIDDEN]),
        (["AKIA" + "IOSFODNN7EXAMPLE"], [HIDDEN]),
        (["--x", AWS], ["--x", HIDDEN]),
        (["ghp_" + "abcdefghijklmnop"], [HIDDEN]),
        ([JWT], [HIDDEN]),
        (["a7Gk2Lp9Qw4Zx8Cv1Bn6"], [HIDDEN]),
        (
            ["https://hooks.slack.com/services/T0/B0/x"],
            [f"https://hooks.slack.com/services/{HIDDEN}"],
        ),
        # Words that only contain those letters are no secrets.
        (["--max-tokens", "512"], ["--max-tokens", "512"]),
        (["--pad-token-id", "0"], ["--pad-token-id", "0"]),
        (["--tokenizer", "bert"], ["--tokenizer", "bert"]),
        (["--monkey", "1"], ["--monkey", "1"]),
        (["--num-key-value-heads", "8"], ["--num-key-value-heads", "8"]),
        (
            ["--data", "/data/MyModel2_Large/step_10"],
            ["--data", "/data/MyModel2_Large/step_10"],
        ),
        (
            ["s3://bucket/a@b", "http://h:80/@me"],
            ["s3://bucket/a@b", "http://h:80/@me"],
        ),
        (["--user=me:a", "--user=me"], [f"--user=me:{HIDDEN}", "--user=me"]),
        (["TransformerEncoderLayer2Forward"], ["TransformerEncoderLayer2Forward"]),
    ],
)
def test_hides_secrets_in_a_command(argv: list[str], shown: list[str]) -> None:
    """Values of secret options, and what looks like a key wherever it stands."""
    assert command(argv) == tuple(shown)


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("401 for Authorization: Bearer a.b", f"401 for Authorization: {HIDDEN}"),
        (
            "got 'Authorization: Bearer a.b' twice",
            f"got 'Authorization: {HIDDEN}' twice",
        ),
        ("Invalid API key provided: abc", f"Invalid API key provided: {HIDDEN}"),
        ("wrong password 'a b' for u", f"wrong password {HIDDEN} for u"),
        ("login with password hunter2", f"login with password {HIDDEN}"),
        ("the secret is abc", f"the secret is {HIDDEN}"),
        ('e["DB_PASS"] = "a\\"b"; c', f'e["DB_PASS"] = "{HIDDEN}"; c'),
        ("f(password=b'a', n=3)", f"f(password='{HIDDEN}', n=3)"),
        ("('password', 'a')", f"('password', '{HIDDEN}')"),
        ("['x', '-p', 'a', '-n', '3']", f"['x', '-p', '{HIDDEN}', '-n', '3']"),
        ("ran: login --password a -v", f"ran: login --password {HIDDEN} -v"),
        (r"{\"token\": \"a b\"}", r"{\"token\": \"" + HIDDEN + r"\"}"),
        ("a\n-----BEGIN X PRIVATE KEY-----\nb", f"a\n{HIDDEN}"),
        ("use bearer abcdefgh", f"use bearer {HIDDEN}"),
        (
            "https://api.telegram.org/bot12345678:AAtelegramOfTokens_of_35_chars-x/send",
            f"https://api.telegram.org/bot{HIDDEN}/send",
        ),
        ("token 128256 is out of range", "token 128256 is out of range"),
        ("KeyError: 'layers.0.weight'", "KeyError: 'layers.0.weight'"),
        ("Missing key(s) in state_dict: a", "Missing key(s) in state_dict: a"),
        ("in the forward pass: expected 3", "in the forward pass: expected 3"),
    ],
)
def test_hides_secrets_in_a_text(words: str, shown: str) -> None:
    """Messages and lines of code; what was hidden stays so when read again."""
    assert text(words) == shown
    assert text(shown) == shown


def test_what_was_given_as_a_secret_is_hidden_under_any_name() -> None:
    """Long or mixed values; a path, a word or a number would be hidden everywhere."""
    argv = ["train.py", "--pass", "correct horse", "--key", "7", "-u", "me:p4ss@h"]
    variables = {
        "DB_PASS": "swordfish",
        "SSH_AUTH_SOCK": "/tmp/x",
        "MY_URL": "amqp://u:in-url@h",
        "HOME": "/root/somewhere",
    }

    assert known_secrets(argv, variables) == (
        "correct horse",
        "swordfish",
        "in-url",
        "p4ss",
    )


def test_what_may_be_no_secret_is_hidden_nowhere_else() -> None:
    """`-p` is of a precision, too; and a method's name would hide the name by which the
    secret beside it is seen.
    """
    argv = ["train.py", "-p", "bf16", "-P", "cosine", "-p", "hunter22"]
    assert known_secrets(argv, {"AUTH_METHOD": "password", "X_KEY": "api_key"}) == (
        "hunter22",
    )


def test_a_known_secret_is_hidden_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the process that is a secret by its name."""
    monkeypatch.setenv("DB_PASS", "swordfish")

    assert text("cannot log in as swordfish") == f"cannot log in as {HIDDEN}"


def test_what_a_script_has_made_of_its_arguments_hides_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No words, or nothing at all: what it was started with is known."""
    monkeypatch.setattr(
        sys, "orig_argv", ["python", "train.py", "--token", "s3cr3tw0rd"]
    )
    for argv in ([None, 7], None):
        monkeypatch.setattr(sys, "argv", argv)
        assert text("it was s3cr3tw0rd") == f"it was {HIDDEN}"
    monkeypatch.delattr(sys, "argv")
    monkeypatch.setattr(os, "environ", {"NCCL_DEBUG": 1, "NCCL_ALGO": "Ring"})
    assert text("it was s3cr3tw0rd") == f"it was {HIDDEN}"
    assert environment(os.environ) == {"NCCL_ALGO": "Ring"}


def test_a_text_is_looked_at_in_bounded_time() -> None:
    """What is longer is cut at a blank, not written unseen; half a secret is one."""
    shown = text("a " * MOST_TEXT + HF)

    assert len(shown) == MOST_TEXT - 1


def test_a_word_that_is_longer_than_a_text_is_told_of() -> None:
    """Nothing of it is shown, for half a secret is one."""
    shown = text("x" * MOST_TEXT + "y")

    assert shown == f"<a word of {MOST_TEXT + 1:,} characters, left out>"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("key", True),
        ("sshKey", True),
        ("apiKeys", True),
        ("HTTP_PROXY_PASS", True),
        ("x-amz-security-token", True),
        ("client.credentials", True),
        ("db_passwort", True),
        ("HF_LOGIN", True),
        ("login", False),
        ("login_node", False),
        ("KeyError", False),
        ("key_padding_mask", False),
        ("sort_key", False),
        ("first_pass", False),
        ("pass_rate", False),
        ("token_dir", False),
        ("monitor_key", False),
        ("otp_loss", False),
        ("user_token", True),
        ("password_file", True),
        ("author", False),
        ("password" * 100, False),
    ],
)
def test_names(name: str, secret: bool) -> None:
    """Whole words, in any spelling; what no name would be is none."""
    assert is_secret_name(name) == secret


def test_keeps_only_the_environment_that_explains_a_run() -> None:
    """A list of names; nothing else is written, whatever it holds."""
    variables = {
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_SECRET_KEY": "abc",
        "NCCL_NET_PLUGIN": f"x;{HF}",
        "TORCH_NCCL_ENABLE_TIMING": "1",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "ACCELERATE_USE_FSDP": "true",
        "ACCELERATE_TOKEN": "abc",
        "HF_TOKEN": HF,
        "HOME": "/root",
        "MY_NCCL_THING": "1",
    }

    assert environment(variables) == {
        "ACCELERATE_USE_FSDP": "true",
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "NCCL_DEBUG": "INFO",
        "NCCL_NET_PLUGIN": f"x;{HIDDEN}",
        "NCCL_SECRET_KEY": HIDDEN,
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "TORCH_NCCL_ENABLE_TIMING": "1",
    }
