"""A training that is recorded, and viewed live, for as long as one likes.

    python -m tests.benchmarks.soak --minutes 30

One rank of six small units trains without a pause under `fsdpdoctor run --live`, while
somebody asks its page every two seconds. Every half minute a line: memory and open
descriptors of the training and of the viewer, files and size of the record. Status 1
where memory in the last quarter is more than a tenth, and 16 MB, above that of the
second, or descriptors or files have grown.
"""

from __future__ import annotations

import argparse
import contextlib
import http.cookiejar
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.fuzz_scan import say

TRAIN = """
import time, torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(6)])
for block in model:
    fully_shard(block)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
end = time.monotonic() + {seconds}
while time.monotonic() < end:
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
dist.destroy_process_group()
"""
EVERY_S = 30
ASK_S = 2
GROWN_SHARE, GROWN_BYTES = 0.1, 16 << 20
_ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/\S*token=\S+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was held at a time."""

    memory: dict[str, int]
    descriptors: dict[str, int]
    files: int
    record_bytes: int


def resident(pid: int) -> int:
    """Bytes of a process that no file backs."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(s.split()[1]) << 10 for s in status if s.startswith("RssAnon"))


def processes(leader: int, record: Path) -> dict[str, int]:
    """The training, of the session of its launcher, and the viewer of the record."""
    found: dict[str, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with contextlib.suppress(OSError, IndexError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            if "fsdpdoctor.cli.processes.live" in words and str(record) in words:
                found["viewer"] = int(folder.name)
            elif int(stat[3]) == leader and "--nproc-per-node" not in words:
                found["training"] = int(folder.name)
    return found


def sample(leader: int, record: Path) -> Sample:
    """Look once."""
    found = processes(leader, record)
    files = [path for path in record.glob("*") if path.is_file()]
    return Sample(
        memory={name: resident(pid) for name, pid in found.items()},
        descriptors={
            name: len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - only counted
            for name, pid in found.items()
        },
        files=len(files),
        record_bytes=sum(path.stat().st_size for path in files),
    )


def asker(log: Path) -> Callable[[], None]:
    """Asks the page that a log names, once it does."""
    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    address: list[str] = []

    def ask() -> None:
        if not address:
            found = _ADDRESS.search(log.read_text(errors="replace"))
            if found is None:
                return
            address.append(found[0])
        base = address[0].split("?")[0]
        with contextlib.suppress(OSError):
            for path in (address[0], f"{base}_dash-layout", f"{base}timeline"):
                opener.open(path, timeout=30).read()

    return ask


def has_grown(samples: list[Sample]) -> list[str]:
    """What is larger in the last quarter than in the second."""
    quarter = max(1, len(samples) // 4)
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    found: list[str] = []
    for name in late[-1].memory:
        before = max(s.memory.get(name, 0) for s in early)
        after = max(s.memory.get(name, 0) for s in late)
        if after > before * (1 + GROWN_SHARE) and after > before + GROWN_BYTES:
            found.append(f"memory of the {name}: {before >> 20} MB, then {after >> 20}")
        opened = max(s.descriptors.get(name, 0) for s in early)
        if max(s.descriptors.get(name, 0) for s in late) > opened + 4:
            found.append(f"descriptors of the {name}")
    if late[-1].files > early[0].files:
        found.append("files of the record")
    return found


def main() -> None:
    """Train, view and look; status 1 where something has grown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script, record, log = folder / "soak_train.py", folder / "run", folder / "log"
        script.write_text(TRAIN.format(seconds=60 * given.minutes))
        run = (sys.executable, "-m", "fsdpdoctor", "run", "--nproc-per-node", "1")
        options = ("--live", "--no-report", "--out", str(record), str(script))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*run, *options], stdout=output, stderr=output, start_new_session=True
            )
        ask, samples, looked = asker(log), list[Sample](), time.monotonic()
        try:
            while process.poll() is None:
                time.sleep(ASK_S)
                ask()
                if time.monotonic() - looked >= EVERY_S and record.exists():
                    looked = time.monotonic()
                    samples.append(sample(process.pid, record))
                    say(str(samples[-1]))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        grown = has_grown(samples) if len(samples) > 3 else ["nothing was seen"]
        say("; ".join(grown) or "flat")
        if process.returncode:
            say(log.read_text(errors="replace")[-2000:])
        sys.exit(1 if grown or process.returncode else 0)


if __name__ == "__main__":
    main()
