"""Secrets of many shapes, planted where a training may have them; all made up.

    python -m fsdpdoctor run ... tests/redact/planted.py ARGUMENTS

trains a few steps on one rank and ends with an exception that tells eight of them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

MARK = "PLANTED"


def _plain(number: int) -> str:
    """A secret that only the name beside it tells."""
    return f"Planted{number:02d}word"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """Arguments, words of an exception and variables, with what they hide."""

    arguments: tuple[str, ...]
    messages: tuple[str, ...]
    environment: dict[str, str]
    secrets: tuple[str, ...]


def planted() -> Planted:
    """24 on the command line, 8 in an exception, 12 in the environment."""
    numbers: Iterator[str] = (_plain(number) for number in range(100))
    given = [next(numbers) for _ in range(16)]
    a = iter(given)
    shaped = (
        "hf_" + "PlantedQwErTyUiOp",
        "sk-" + "Planted0123456789",
        "AKIA" + "PLANTED9EXAMPLE9",
        "ghp_" + "Planted0123456789abcdef",
        "0f1e2d3c4b5a69788796a5b4c3d2e1f001020304",
        "wJalrXUtnFEMI/K7MDENG" + "/bPxRfiCYzEXAMPLEKE",
        "eyJhbGciOiJIUzI1NiJ9." + "eyJwbGFudGVkIjoxfQ.c2lnbmF0dXJl",
        "xoxb-" + "1234567890-Planted",
    )
    arguments = (
        *("--pass", next(a), "-p", next(a), f"--api-key={next(a)}"),
        *("-H", f"Authorization: Bearer {next(a)}", "-H", f"X-Api-Key: {next(a)}"),
        *("--config", json.dumps({"db": {"password": next(a)}, "lr": 0.1})),
        f"--opts={{'token': '{next(a)}', 'n': 3}}",
        f"https://me:{next(a)}@host/x",
        f"https://host/x?code={next(a)}&n=3",
        f"Server=h;Password={next(a)};User=u",
        f"AccountName=n;AccountKey={next(a)};EndpointSuffix=s",
        f"host=h password={next(a)} port=1",
        f"logger.auth_token={next(a)}",
        *("--auth", "Bearer", next(a), "--secrets", next(a), next(a)),
        *(word for at, secret in enumerate(shaped) for word in (f"--x{at}", secret)),
    )
    told = [next(numbers) for _ in range(8)]
    messages = (
        f"401 for 'Authorization: Bearer {told[0]}'",
        f"cannot open postgres://me:{told[1]}@host:5432/x",
        f"wrong password '{told[2]}'",
        f"request to https://host/x?sig={told[3]} failed",
        f"{{'client_secret': '{told[4]}'}}",
        f"Command '['login', '-p', '{told[5]}']' failed",
        f"invalid API key: {told[6]}",
        f"token={told[7]}",
    )
    kept = [next(numbers) for _ in range(12)]
    names = (
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASS", "MY_PWD"),
        *("NCCL_SECRET", "NCCL_AUTH_KEY", "GITHUB_TOKEN", "SOME_CREDENTIALS"),
    )
    environment = dict(zip(names, kept, strict=False))
    environment |= {
        "NCCL_PLUGIN_ARGS": f"user=u;password={kept[9]}",
        "DATABASE_URL": f"amqp://u:{kept[10]}@h",
        "TORCH_NCCL_HEADER": f"Authorization: Basic {kept[11]}",
    }
    return Planted(
        arguments=arguments,
        messages=messages,
        environment=environment,
        secrets=(*given, *shaped, *told, *kept),
    )


def _train() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for block in model:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(6):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # What the environment holds gets into words under no name at all.
    held = os.environ["DB_PASS"], os.environ["HF_TOKEN"]
    raise RuntimeError("; ".join((*planted().messages, f"as {held[0]} and {held[1]}")))


if __name__ == "__main__":
    _train()
