"""Advice runs as pasted, on a model that FSDP2 shards as rank 0 of 2."""

from __future__ import annotations

import ast
import pkgutil
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.fsdp import FSDPModule

from fsdpdoctor import detectors
from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors import judge_all
from fsdpdoctor.finding import Advice
from fsdpdoctor.run import RankData
from fsdpdoctor.schema import (
    COUNTER_DIRECT_METHODS,
    COUNTER_LEFT_OPEN,
    BlockSpec,
    MemorySamples,
    ModelSpec,
    OptimizerSpec,
    ParamSpec,
    UnitSpec,
)
from fsdpdoctor.testing import draw, measured, unit
from tests.detectors.answers import CUDA
from tests.detectors.drawn_jobs import APART, OVER_HOSTS
from tests.detectors.pasted_code import run
from tests.detectors.test_frozen_params import BOTH, THROUGH, stored
from tests.rig.changed import replace

ROOT = unit("<root>", is_root=True, reshard_after_forward=False)
LAYERS = tuple(unit(f"layers.{at}") for at in range(3))
UNITS = (ROOT, *LAYERS)
AVAILABLE = tuple(dir(FSDPModule))
BEFORE_RESET = tuple(name for name in AVAILABLE if name != "reset_iter_state")
"""Of torch before 2.13."""

EXPOSED = """
    all_gather           0...1...2...3...........................
    wait                 0...1...2...3...........................
    forward              .00000000000000000......................
    forward              .....111.222.333........................
    backward_all_gather  ..................3...2...1.............
    backward_wait        ..................3...2...1.............
    backward             ...................333.222.111000.......
    reduce_scatter       ......................3...2...1..0......
    rs_wait              ......................3...2...1..0......
    optimizer            ..................................xxxx..
    clip                 ......................................xx
"""

REDUCED_TWICE = """
    micro_batch     0000011111
    forward         0....0....
    backward        .000..000.
    reduce_scatter  ....0....0
    all_reduce      ....0....0
    rs_wait         ....0....0
"""

QUEUED = """
    forward              0000000.......................
    forward              .111122.......................
    backward             .......1111......0000..000000.
    reduce_scatter       .........11111........11.....0
    issue                ..........0...................
    backward_all_gather  ..............000.............
    backward_wait        ...........000000.............
    rs_wait              .....................11......0
"""

LATE_HOST = """
    sync        ..xxxx..............
    issue       ..........1.........
    all_gather  ..........1.........
    wait        .....111111.........
    forward     00000000000000000000
    forward     ...........111111111
"""

ON_THE_HOST = """
    input       xxx....................
    forward     ...00000000............
    gc          .....22................
    checkpoint  ...........xxxxxx......
    optimizer   .................xxx...
    clip        ....................xxx
"""


def with_peak(data: RankData, peak_bytes: int, device_bytes: int) -> RankData:
    """The same rank, whose allocator reached a peak on a device of some size."""
    memory = MemorySamples.build(1, peak_bytes=peak_bytes)
    return replace(
        data,
        header=replace(data.header, device_bytes=device_bytes),
        steps=tuple(replace(record, memory=memory) for record in data.steps),
    )


def lists(**units: tuple[int, ...]) -> tuple[UnitSpec, ...]:
    """The units with forward prefetch lists."""
    return (
        ROOT,
        *(
            unit(f"layers.{at}", forward_prefetch=units.get(f"l{at}", ()))
            for at in range(3)
        ),
    )


GENERATING = f"""{EXPOSED}
    eval_root_forward {"." * 40}000.000.
    eval_all_gather   {"." * 40}11..11..
    eval_wait         {"." * 40}11..11..
"""

SHARDED: Mapping[str, RankData] = {
    "device": draw(EXPOSED, CUDA, units=UNITS),
    "cpu": draw(EXPOSED, units=UNITS),
    "accumulation": draw(REDUCED_TWICE, units=UNITS, micro_batches=2),
    "skipping list": draw(EXPOSED, CUDA, units=lists(l0=(3,), l1=(3,))),
    "list and recomputation": draw(
        EXPOSED,
        CUDA,
        units=lists(l0=(3,)),
        model=ModelSpec(wrapper="fsdp2", checkpoint="reentrant"),
    ),
    "stale": draw(EXPOSED + "\n stale ...3333333", CUDA, units=lists(l1=(3,))),
    "evaluation": draw(EXPOSED + "\n eval_unsharded " + "." * 38 + "00", units=UNITS),
    "generation": draw(GENERATING, units=UNITS),
    "optimizer": draw(
        EXPOSED,
        units=UNITS,
        counters={f"{COUNTER_DIRECT_METHODS}: generate": 1},
        model=ModelSpec(
            wrapper="fsdp2",
            optimizers=(
                OptimizerSpec(
                    optimizer_class="AdamW",
                    params=4,
                    dtensors=0,
                    stale=4,
                    without_grad=4,
                ),
            ),
        ),
    ),
    "embedding": draw(
        EXPOSED, CUDA, units=(ROOT, unit("embed", module_class="Embedding"), *LAYERS)
    ),
    "one communicator": draw(QUEUED, CUDA, units=UNITS),
    "late host": draw(LATE_HOST, CUDA, units=UNITS, names=("train.py:12 item",)),
    "host": draw(ON_THE_HOST, units=UNITS),
    "full device": with_peak(
        draw(
            EXPOSED,
            CUDA,
            units=(ROOT, *(replace(u, reshard_after_forward=False) for u in LAYERS)),
        ),
        95,
        100,
    ),
    "lost backward": draw("forward 0011..\nbackward ....00", units=UNITS),
}

BLOCKS = BlockSpec(
    container="layers", module_class="Linear", count=3, units=0, numel=72
)


def param(fqn: str, *shape: int) -> ParamSpec:
    """A parameter over two ranks."""
    local = shape[0] // 2
    for length in shape[1:]:
        local *= length
    return ParamSpec(
        fqn=fqn,
        shape=shape,
        dtype="float32",
        trainable=True,
        shard_dim=0,
        local_numel=local,
        padded_local_numel=local,
    )


LARGE = 1 << 18
TABLES = (param("embed.weight", LARGE, 8), param("lm_head.weight", LARGE, 8))
MATRICES = tuple(param(f"layers.{at}.weight", 8, 8) for at in range(3))
PARAMS = (*TABLES, *MATRICES)
SIZE = 4 * (2 * LARGE * 8 + 3 * 8 * 8)
HEAVY = unit("<root>", is_root=True, unsharded_bytes=64 * LARGE, params=TABLES)

INSIDE = "forward 00000\nforward .12.."

TO_SHARD: Mapping[str, RankData] = {
    "root only": draw(
        "forward 00",
        units=(replace(ROOT, params=PARAMS, unsharded_bytes=SIZE),),
        model=ModelSpec(wrapper="fsdp2", numel=400, blocks=(BLOCKS,)),
    ),
    "a backward that broke off": draw(
        EXPOSED, units=UNITS, model=ModelSpec(wrapper="fsdp2", broken_off_step=4)
    ),
    "a forward that broke off": draw(
        EXPOSED, units=UNITS, counters={COUNTER_LEFT_OPEN: 1}
    ),
    "no units": draw(
        "optimizer xx", units=(), model=ModelSpec(wrapper="ddp", blocks=(BLOCKS,))
    ),
    "tables in the root": draw(INSIDE, units=(HEAVY, *LAYERS[:2])),
    "parameters outside": draw(
        "forward 0",
        units=(LAYERS[0],),
        model=ModelSpec(
            wrapper="fsdp2",
            numel=400,
            unmanaged_fqns=("lm_head.weight",),
            unmanaged_params=1,
            unmanaged_numel=128,
            unmanaged_bytes=512,
            unmanaged_trainable=1,
        ),
    ),
    "parts of blocks": draw(
        "forward 0123",
        units=tuple(unit(f"layers.{at}.{part}") for at in range(2) for part in "ab"),
        model=ModelSpec(wrapper="fsdp2", blocks=(replace(BLOCKS, count=2),)),
    ),
    "autocast": draw(
        INSIDE,
        units=UNITS,
        model=ModelSpec(wrapper="fsdp2", autocast_dtype="bfloat16"),
    ),
    "compiled around": draw(
        "forward 0", units=(replace(LAYERS[0], compiled="around"),)
    ),
    "pageable": draw("forward 0", CUDA, units=(replace(LAYERS[0], offload="cpu"),)),
    "frozen": draw(
        "forward 0",
        units=(replace(LAYERS[0], trainable_numel=0, frozen_numel=1 << 20),),
    ),
    "padded": draw("forward 0", units=(replace(LAYERS[0], padding_bytes=1 << 20),)),
    "frozen master weights": draw(
        BOTH,
        units=(
            stored("layers.0", "float32", "bfloat16", param_dtype="bfloat16"),
            stored(
                "layers.1",
                "float32",
                "bfloat16",
                trainable=True,
                param_dtype="bfloat16",
            ),
        ),
    ),
    "frozen in backward": draw(
        THROUGH,
        units=(
            stored("layers.0", "float32", "float32"),
            stored("layers.1", "float32", "float32", trainable=True),
        ),
    ),
}

DRAWN = {**SHARDED, **TO_SHARD}


def all_code(m: Measures) -> list[str]:
    """Every code of every finding."""
    findings, _ = judge_all(m)
    return [a.code for f in findings for a in f.advice if a.code is not None]


@pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning",  # on a machine of few cores
    "ignore:.torch.jit.script_method:DeprecationWarning",  # the compiler's own
)
@pytest.mark.parametrize("case", DRAWN)
def test_each_advice_runs_as_pasted(case: str, job: None) -> None:
    """Each code alone, on a model of its own."""
    codes = {
        code
        for available in (AVAILABLE, BEFORE_RESET)
        for code in all_code(measured(DRAWN[case], available=available))
    }

    assert codes
    for code in codes:
        run(code)


def test_advice_for_several_hosts(job: None) -> None:
    """A mesh of two hosts with a rank each."""
    codes = [c for c in all_code(measured(*OVER_HOSTS)) if "init_device_mesh" in c]

    assert len(codes) == 1
    run(codes[0])


def test_every_code_that_detectors_have_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No `Advice(code=...)` in the detectors' sources goes untested above."""
    written: set[tuple[str, int]] = set()
    made: set[tuple[str, int]] = set()

    def noted(**fields: Any) -> Advice:
        frame = sys._getframe(1)
        if fields.get("code") is not None:
            made.add((frame.f_globals["__name__"], frame.f_lineno))
        return Advice(**fields)

    for found in pkgutil.iter_modules(detectors.__path__, f"{detectors.__name__}."):
        module: Any = import_module(found.name)
        if not hasattr(module, "Advice"):
            continue
        monkeypatch.setattr(module, "Advice", noted)
        tree = ast.parse(Path(module.__file__).read_text())
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        written |= {
            (found.name, call.lineno)
            for call in calls
            if ast.unparse(call.func) == "Advice"
            and any(given.arg == "code" for given in call.keywords)
        }
    for data in DRAWN.values():
        judge_all(measured(data, available=AVAILABLE))
        judge_all(measured(data, available=BEFORE_RESET))
    judge_all(measured(*OVER_HOSTS))
    for m in APART:
        judge_all(m)

    assert made == written
