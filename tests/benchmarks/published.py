"""Rehearsals beside what real GPUs did.

    python -m tests.benchmarks.published [--mpt] [--quick] [--llama]

Prints a row for each published measurement: tokens/s for each GPU, measured and
rehearsed, and the difference. Half of the MPT rows (every second one, in the file's
order) gave the constants of `specs/*_2023.toml`, by least squares of these differences;
the median and the 90th percentile are of the other half. Nothing is fitted to the rows
of `torchtitan_llama3.csv`.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch

from fsdpdoctor.network import parse_network
from fsdpdoctor.quantities import SECOND
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.virtual_device import VirtualDevice
from fsdpdoctor.rehearsal.device.virtual_session import on_device
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing
from tests.benchmarks import mpt

HERE = Path(__file__).parent
FOLDER = HERE / "published"

SPECS = {
    "h100_80gb": ("h100_2023", "intra=nvlink4,inter=360GB/s@60us"),
    "a100_80gb": ("a100_80gb_2023", "intra=240GB/s@15us,inter=184GB/s@60us"),
}
"""The device, and the network. A ring over whole nodes crosses from node to node on
each adapter at once: 3200 and 1600 Gbit/s a node, of which RDMA reaches 92 %, as far as
NVLink inside the node goes along.
"""

_ALL = 4
"""So many micro-batches are rehearsed each; of more, what two of them add."""


def rows_of(name: str) -> list[dict[str, str]]:
    """A published table."""
    with (FOLDER / name).open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def rehearse_quickly(row: dict[str, str]) -> dict[str, Any]:
    """One row from models of four and of eight blocks: blocks are all alike, and what
    one more of them adds is what every one adds. Tight memory is not seen.
    """
    layers = int(row["layers"])
    few, more = (rehearse_mpt({**row, "layers": str(n)}) for n in (4, 8))
    times = (layers - 8) / 4

    def of(a: float, b: float) -> float:
        return b + times * (b - a)

    seconds = of(few["seconds"], more["seconds"])
    return {
        **more,
        "seconds": seconds,
        "tokens_per_s": more["tokens"] / seconds,
        "reserved_gib": None,  # pools of few blocks say nothing of those of many
        "by_kind": {
            k: of(few["by_kind"].get(k, 0), v) for k, v in more["by_kind"].items()
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MptStep:
    """One step: its micro-batches, how long it took, and in which kinds of kernels."""

    micro_batches: int
    ns: int
    by_kind: Counter[str]

    def and_more(self, fewer: MptStep, times: float) -> MptStep:
        """As this one, and so many times what it has more than another."""

        def of(here: int, there: int) -> int:
            return round(here + times * (here - there))

        return MptStep(
            micro_batches=of(self.micro_batches, fewer.micro_batches),
            ns=of(self.ns, fewer.ns),
            by_kind=Counter(
                {k: of(v, fewer.by_kind[k]) for k, v in self.by_kind.items()}
            ),
        )


def rehearse_mpt(row: dict[str, str]) -> dict[str, Any]:
    """One row, once its allocator has settled: the mean of the last two steps, or what
    two micro-batches more add to a step, as often as there are.
    """
    device = VirtualDevice(load_spec(SPECS[row["device"]][0]))
    wanted = int(row["micro_batches"])
    few = wanted <= _ALL
    counts = (1, wanted, wanted, wanted) if few else (1, 2, 2, 4)
    fewer, step = _mpt_steps(row, device, counts)[-2:]
    more = -0.5 if few else (wanted - 4) / 2
    step = step.and_more(fewer, more)
    tokens = int(row["micro_batch"]) * wanted * int(row["seq_len"])
    return {
        "tokens_per_s": tokens / step.ns * SECOND,
        "seconds": step.ns / SECOND,
        "tokens": tokens,
        "by_kind": step.by_kind,
        "reserved_gib": device.allocator.peak_reserved / 2**30,
        "fits": device.allocator.ooms == 0,
        "retries": device.allocator.retries,
    }


def _mpt_steps(
    row: dict[str, str], device: VirtualDevice, counts: tuple[int, ...]
) -> list[MptStep]:
    """Steps of a row's job, of so many micro-batches each."""
    shape = mpt.shape_of(row)
    wire = parse_network(SPECS[row["device"]][1])
    job = Rehearsal(wire=wire, world_size=int(row["gpus"]))
    steps: list[MptStep] = []
    with rehearsing(job, virtual=device.collective), on_device(device):
        torch.distributed.init_process_group("nccl")
        model = mpt.build(
            shape,
            checkpointed=row["activation_checkpointing"] == "True",
            pure=row["mixed_precision"] == "PURE",
        )
        optimizer = mpt.DecoupledAdamW(model.parameters())
        for count in counts:
            device.synchronize()
            begun, before = device.clock.now_ns, device.tally.ns.copy()
            mpt.step(model, optimizer, shape, int(row["micro_batch"]), count)
            device.synchronize()
            ns = device.clock.now_ns - begun
            by_kind = device.tally.ns - before
            steps.append(MptStep(micro_batches=count, ns=ns, by_kind=by_kind))
    return steps


def print_mpt(only: str | None, save: Path | None, *, quick: bool) -> None:
    """The table of MPT rows, and the errors of the half that was not fitted."""
    errors: list[float] = []
    for number, row in enumerate(rows_of("mpt_fsdp_throughput.csv")):
        if only is not None and row["device"] != only:
            continue
        try:
            found = rehearse_quickly(row) if quick else rehearse_mpt(row)
        except torch.OutOfMemoryError as full:
            print(f"{number:3} {row['model']:8} does not fit: {full}", flush=True)
            continue
        measured = float(row["tokens_per_s_per_gpu"])
        error = found["tokens_per_s"] / measured - 1
        fitted = number % 2 == 0
        if not fitted:
            errors.append(abs(error))
        print(
            f"{number:3} {row['device']:10} {row['model']:8} {row['seq_len']:>6} "
            f"{row['gpus']:>4} GPUs {row['micro_batch']:>3} x "
            f"{row['micro_batches']:>3} "
            f"{measured:8.0f} {found['tokens_per_s']:8.0f} {error:+7.1%} "
            f"{_memory(found)}{' fitted' if fitted else ''}",
            flush=True,
        )
        if save is not None:
            with save.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"number": number, **row, **found}) + "\n")
    if len(errors) > 1:
        print(
            f"the other half: median {median(errors):.1%}, "
            f"90th percentile {quantiles(errors, n=10)[-1]:.1%}"
        )


def _memory(found: dict[str, Any]) -> str:
    """Reserved, and whether the allocator had to give memory back to go on."""
    if found["reserved_gib"] is None:
        return ""
    if not found["fits"]:
        return " does not fit"
    tight = " tight" if found["retries"] else ""
    return f"{found['reserved_gib']:6.1f} GiB{tight}"


def print_llama() -> None:
    """The rows of torchtitan's page, each a rehearsal of its own process."""
    for row in rows_of("torchtitan_llama3.csv"):
        out = subprocess.run(
            [
                *(sys.executable, "-m", "fsdpdoctor", "rehearse", "--no-report"),
                *("--on", "h100_96gb", "--world-size", row["gpus"]),
                *("--bandwidth", "intra=nvlink4,inter=360GB/s@60us"),
                *(str(HERE / "llama_script.py"), "8b"),
            ],
            env={**os.environ, "COMPILE": "01"[row["variant"] == "compiled"]},
            capture_output=True,
            text=True,
            check=False,
        )
        last = [line for line in out.stdout.splitlines() if line.startswith("step")]
        if not last:
            print(row, out.stderr[-500:])
            continue
        words = last[-1].split()
        tokens, gib = float(words[2]), float(words[6])
        measured, memory = float(row["tokens_per_s_per_gpu"]), float(row["memory_gib"])
        print(
            f"{row['model']} {row['gpus']:>4} GPUs {row['variant']:8} "
            f"{measured:7.0f} {tokens:7.0f} {tokens / measured - 1:+7.1%}   "
            f"{memory:5.1f} {gib:5.1f} GiB {gib / memory - 1:+7.1%}",
            flush=True,
        )


def main() -> None:
    """Both tables, or one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mpt", action="store_true")
    parser.add_argument("--llama", action="store_true")
    parser.add_argument("--device", choices=sorted(SPECS))
    parser.add_argument("--save", type=Path, help="Append each row as JSON.")
    parser.add_argument("--quick", action="store_true", help="From eight blocks.")
    given = parser.parse_args()
    if given.llama or not given.mpt:
        print_llama()
    if given.mpt or not given.llama:
        print_mpt(given.device, given.save, quick=given.quick)


if __name__ == "__main__":
    main()
