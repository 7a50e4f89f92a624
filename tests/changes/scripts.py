"""Training scripts of many kinds, run with advice applied to them as it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdpdoctor.changes.sharding_code import INSERTS, REPLACES
from tests.gallery import network
from tests.gallery.rehearsed import rehearse

STEPS = 6

Call = tuple[tuple[str, ...], Mapping[str, Any]]
"""One `fully_shard` of a script: the modules' paths, and its arguments."""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What a user wrote. Every `fully_shard` call is in `calls`, children first."""

    build: Callable[[], Any]
    calls: Sequence[Call]
    options: Callable[[], Mapping[str, Any]] = dict  # of every call
    settle: Callable[[Any], None] = lambda model: None  # after sharding
    optimizer: Callable[[Any], torch.optim.Optimizer] = network.sgd
    early_optimizer: bool = False
    micro_batches: int = 1
    autocast: bool = False
    compiles_whole: bool = False
    clips: bool = False
    evaluates: bool = False
    method: str | None = None  # called in place of forward
    bandwidth: str = "40MB/s@100us"
    world_size: int = 8


@dataclass(kw_only=True)
class Outcome:
    """What one run of a script came to."""

    losses: list[float] = field(default_factory=list)
    dtypes: set[Any] = field(default_factory=set)  # of mixed precision policies


@dataclass(kw_only=True)
class Pasting:
    """A script with some code in it, put where the code's own words say."""

    script: Script
    code: str = ""
    shard: Callable[[Any], None] | None = None  # in place of the script's own calls
    scope: dict[str, Any] = field(default_factory=dict)
    outcome: Outcome = field(default_factory=Outcome)

    def paste(self) -> None:
        """Run the code here."""
        exec(compile(self.code, "<advice>", "exec"), self.scope)

    def __call__(self) -> None:
        """Train a few steps."""
        script = self.script
        model = script.build()
        repeated(model, script.world_size)
        self.scope["model"] = model
        optimizer = None
        if script.early_optimizer:
            optimizer = script.optimizer(model)
        self.scope["optimizer"] = optimizer
        self._shard(model)
        if self.shard is None:
            script.settle(model)
        if self._goes("sharded"):
            self.paste()
        if optimizer is None:
            optimizer = script.optimizer(model)
        self.scope["optimizer"] = optimizer
        if self._goes("after"):
            self.paste()
        self._train(model, self.scope["optimizer"])
        for module in model.modules():
            if hasattr(module, "_get_fsdp_state"):
                policy = module._get_fsdp_state()._mp_policy
                self.outcome.dtypes.add((policy.param_dtype, policy.reduce_dtype))

    def _goes(self, place: str) -> bool:
        """Where the code says that it goes."""
        code = self.code
        if not code:
            return False
        if REPLACES in code:
            return place == "instead"
        if INSERTS in code:
            return place == "before root"
        if "# Before the fully_shard call" in code:
            return place == "before owner"
        before = (
            "compile_blocks",
            "MixedPrecisionPolicy(",
            "mesh = ",
            "kept = ",
            "shard_where_even",
            "# `model` is your plain model",
        )
        if any(word in code for word in before):
            return place == "first"
        if "Before next(batches)" in code or "After the evaluation" in code:
            return place == "each step"
        if "Between backward and optimizer.step()" in code:
            return place == "before step"
        if "before the optimizer is built." in code:
            return place == "sharded"
        return place == "after"

    def _shard(self, model: Any) -> None:
        if self.shard is not None:
            self.shard(model)
            return
        if self._goes("instead"):
            self.paste()
            return
        if self._goes("first"):
            self.paste()
        given = self._given(model)
        owner = self.code.partition("# Before the fully_shard call for ")[2]
        for paths, arguments in self.script.calls:
            root = paths == ("",)
            if root and self._goes("before root"):
                self.paste()
            if owner.startswith(f'"{paths[0]}"') and self._goes("before owner"):
                self.paste()
            modules = [model.get_submodule(path) for path in paths]
            shard: Any = fully_shard
            shard(
                modules if len(modules) > 1 else modules[0],
                **{**self.script.options(), **arguments, **given},
            )

    def _given(self, model: Any) -> dict[str, Any]:
        """What the code defines for every call of the script's own."""
        scope, given = self.scope, {}
        if "policy" in scope:
            given["mp_policy"] = scope["policy"]
        if "mesh" in scope:
            given["mesh"] = scope["mesh"]
        if "kept" in scope:
            given["ignored_params"] = scope["kept"]
        if "shard_where_even" in scope:
            given["shard_placement_fn"] = scope["shard_where_even"]
        if "compile_blocks" in scope:
            scope["compile_blocks"](list(model.get_submodule("layers").children()))
        return given

    def _train(self, model: Any, optimizer: Any) -> None:
        script, scope = self.script, self.scope
        autocast = script.autocast and "policy" not in scope
        run = getattr(model, script.method) if script.method else model
        if script.compiles_whole and "compile_blocks" not in scope:
            run = torch.compile(run, backend="eager")
        for _ in range(STEPS):
            if self._goes("each step") and not script.evaluates:
                self.paste()
            for micro_batch in range(script.micro_batches):
                if "sync_on_last" in scope:
                    scope["sync_on_last"](model, micro_batch, script.micro_batches)
                with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                    loss = run(network.batch())
                loss.backward()
                self.outcome.losses.append(float(loss.detach()))
            if script.evaluates:
                with torch.no_grad():
                    run(network.batch())
                if self._goes("each step"):
                    self.paste()
            if script.clips:
                self._clip(model)
            if self._goes("before step"):
                self.paste()
            optimizer.step()
            optimizer.zero_grad()

    def _clip(self, model: Any) -> None:
        if "clip" in self.scope:
            self.scope["clip"](model, 1.0)
            return
        for p in model.parameters():
            if p.grad is not None:
                p.grad.mul_(1.0)


def run(
    script: Script,
    folder: Path,
    code: str = "",
    shard: Callable[[Any], None] | None = None,
) -> Outcome:
    """Record a script in virtual time, with some code pasted into it."""
    pasting = Pasting(script=script, code=code, shard=shard)
    rehearse(
        pasting,
        folder,
        command=("train.py",),
        bandwidth=script.bandwidth,
        world_size=script.world_size,
        steps="2:6",
    )
    return pasting.outcome


def layers_of(model: nn.Module, path: str = "layers") -> list[Call]:
    """A call for each of some blocks."""
    count = len(list(model.get_submodule(path).children()))
    return [((f"{path}.{at}",), {}) for at in range(count)]


ROOT: Call = (("",), {})


def repeated(model: nn.Module, ranks: int) -> None:
    """Make a model's rows those of rank 0, again and again.

    That is what the modelled network gathers; so a parameter that is gathered is
    what it was, and losses are those of the whole model.
    """
    with torch.no_grad():
        for p in model.parameters():
            rows = p.shape[0] // ranks
            if rows and p.shape[0] % ranks == 0:
                p.copy_(p[:rows].repeat(ranks, *[1] * (p.dim() - 1)))
