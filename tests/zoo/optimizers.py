"""M: optimizers and clipping.

A modelled host does not know what dispatching a list of DTensors takes: steps of
`foreach` optimizers are drawn.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.zoo.entry import Entry, Untold
from tests.zoo.job import Moment
from tests.zoo.situations import Drawn, but, drawn, rehearsed
from tests.zoo.wrapping import plain_adamw, vision

# -- M


def clip_each(moment: Moment) -> None:
    """A norm of the whole gradient for each parameter."""
    total = torch.zeros((), device="cuda")
    for p in moment.model.parameters():
        total = total + p.grad.full_tensor().pow(2).sum()
    for p in moment.model.parameters():
        p.grad.mul_(0.99)


def clip_at_once(moment: Moment) -> None:
    """The built-in: one all-reduce."""
    torch.nn.utils.clip_grad_norm_(moment.model.parameters(), 1.0)


def clip_in_a_loop(moment: Moment) -> None:
    """Norms of the shards one by one, then one reduction."""
    squares = []
    for p in moment.model.parameters():
        local = p.grad.to_local().float()
        squares.append((local * local).sum() / 1.0)
        squares[-1] = squares[-1].sqrt() ** 2
    total = torch.stack(squares).sum()
    dist.all_reduce(total)
    scale = (1.0 / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for p in moment.model.parameters():
        p.grad.to_local().mul_(scale)


def clip_foreach(moment: Moment) -> None:
    """Norms of the shards in one call."""
    grads = [p.grad.to_local() for p in moment.model.parameters()]
    total = torch.stack(torch._foreach_norm(grads)).square().sum()
    dist.all_reduce(total)
    torch._foreach_mul_(grads, (1.0 / (total.sqrt() + 1e-6)).clamp(max=1.0))


STEP = """
all_gather          0.1.....................
wait                0.......................
forward             .000000111111...........
backward_all_gather .........0..............
backward            .............11111100000
reduce_scatter      ...................1...0
"""


def ended(length: int, idle: int = 0) -> str:
    """A step whose optimizer takes so long."""
    lines = [line for line in STEP.splitlines() if line]
    drawing = [line + "." * (length + idle) for line in lines]
    return "\n".join([*drawing, "optimizer           " + "." * 24 + "0" * length])


A_THIRD, A_FORTIETH = ended(12), ended(1, 1)
FOREACH, FUSED = ended(9), ended(2, 1)


def both(picture: str, **around: Any) -> Drawn:
    """Two ranks of a device."""
    return drawn(picture, picture, device="cuda", clock="cuda", **around)


MANY = rehearsed(build=vision, width=512, blocks=3, batch=16)
CLIPS = rehearsed(blocks=6, wire="80GB/s@15us", batch=12)

ENTRIES: list[Entry | Untold] = [
    Entry(
        number="M01",
        why="AdamW took a third of the step: its host, with many small DTensors",
        fault=both(A_THIRD),
        cure=both(A_FORTIETH),
        codes=("FD404",),
        fast=True,
    ),
    Entry(
        number="M02",
        why="clipping gathers each gradient whole: a collective a parameter",
        fault=but(CLIPS, between=clip_each),
        cure=but(CLIPS, between=clip_at_once),
        codes=("FD404", "FD407"),
    ),
    Entry(
        number="M03",
        why="norms in a Python loop: thousands of launches",
        fault=but(MANY, between=clip_in_a_loop, host=2.0, batch=32),
        cure=but(MANY, between=clip_foreach, host=2.0, batch=32),
        codes=("FD404", "FD902"),
    ),
    Untold(
        number="M04",
        why="a logged number that is too small: what is printed is not recorded",
    ),
    Entry(
        number="M05",
        why="the fused optimizer was off: 7 %",
        fault=rehearsed(blocks=6, batch=2, optimizer=plain_adamw, wire="nvlink5"),
        cure=rehearsed(blocks=6, batch=2, wire="nvlink5"),
        codes=("FD404",),
    ),
    Entry(
        number="M06",
        why="138 ms of the host for 13 ms of the device: small parameters, foreach",
        fault=both(FOREACH, scale_ns=15_000_000),
        cure=both(FUSED, scale_ns=15_000_000),
        codes=("FD404",),
        fast=True,
    ),
    Entry(
        number="M07",
        why="the optimizer was built before sharding: weights cannot move",
        fault=rehearsed(early_optimizer=True, blocks=4),
        cure=rehearsed(blocks=4),
        codes=("FD504",),
    ),
]
