"""Fuzzes the readers of run files, headers, nsys exports and Flight Recorder dumps.

    python -m tests.benchmarks.fuzz_readers stream --minutes 20   # and its heartbeat
    python -m tests.benchmarks.fuzz_readers header --minutes 20
    python -m tests.benchmarks.fuzz_readers nsys --minutes 20
    python -m tests.benchmarks.fuzz_readers dumps --minutes 20

Each input goes through the command that a user gives, in this process. What reaches
new lines of ours is kept and changed further. A traceback, an input that takes over
20 s of a processor, or memory of over 1 GB is a find: it goes to `--found`, and the
status is 1.
"""

from __future__ import annotations

import argparse
import faulthandler
import pickle
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from click.testing import CliRunner

import fsdpdoctor
from fsdpdoctor.cli import main as fsdpdoctor_main
from fsdpdoctor.storage.plain_pickle import NotPlainError, load_plain
from tests.benchmarks.fuzz_scan import keep, say
from tests.dashboard.synthetic import Shape, write_run
from tests.importers.test_nsys import export
from tests.memory_snapshot.drawn_snapshot import Drawn, draw_steps

OURS = str(Path(fsdpdoctor.__file__).parent)
HANG_S = 20
TELL_S = 60
MOST_MEMORY = 1 << 30

Lines = set[tuple[str, int]]

_NUMBER = re.compile(rb"-?\d+")
_NUMBERS = (
    *(b"-1", b"0", b"1", b"999", b"2147483647", b"-2147483648", b"1000000000"),
    *(b"9223372036854775807", b"-9223372036854775808", b"1" + b"0" * 30, b"1e400"),
    *(b"null", b'"x"', b"[]", b"{}", b"true", b"1.5", b"[[[[[[]]]]]]"),
)
_WORDS = (
    *(b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f", b"\0" * 7 + b"\x80"),
    *(b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\x80", b"\1\0\0\0"),
)


def change_bytes(rng: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    """Flips, words of the machine, cuts, repeats, splices."""
    changed = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        if not changed:
            break
        at = rng.randrange(len(changed))
        match rng.randrange(6):
            case 0:
                changed[at] ^= 1 << rng.randrange(8)
            case 1:
                word = rng.choice(_WORDS)
                at -= at % len(word)
                changed[at : at + len(word)] = word
            case 2:
                del changed[at : at + rng.choice((1, 4, 8, 100, 10_000))]
            case 3:
                piece = changed[at : at + rng.choice((8, 64, 4000))]
                changed[at:at] = piece
            case 4:
                changed[at] = rng.randrange(256)
            case _:
                other = rng.choice(pool)
                begin = rng.randrange(len(other) + 1)
                changed[at : at + 64] = other[begin : begin + 64]
    return bytes(changed)


def change_text(rng: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    """Numbers, pieces of JSON, or bytes."""
    for _ in range(1 << rng.randrange(3)):
        found = list(_NUMBER.finditer(data))
        if not found or rng.random() < 0.2:
            data = change_bytes(rng, data, pool)
            continue
        match = rng.choice(found)
        new = rng.choice((*_NUMBERS, str(rng.getrandbits(64)).encode()))
        data = data[: match.start()] + new + data[match.end() :]
    return data


def change_value(rng: random.Random, value: Any, depth: int = 0) -> Any:
    """Something else somewhere in a nested value."""
    strange: tuple[Any, ...] = (
        None,
        -1,
        10**30,
        "x" * 100,
        [],
        {},
        True,
        b"\xff",
        1.5,
        ["0", "1"],
    )
    if (
        depth > 6
        or rng.random() < 0.1
        or not isinstance(value, dict | list)
        or not value
    ):
        return rng.choice(strange)
    if isinstance(value, dict):
        name = rng.choice(list(value))
        changed = dict(value)
        if rng.random() < 0.1:
            del changed[name]
        else:
            changed[name] = change_value(rng, value[name], depth + 1)
        return changed
    at = rng.randrange(len(value))
    return [*value[:at], change_value(rng, value[at], depth + 1), *value[at + 1 :]]


def change_dump(rng: random.Random, data: bytes, pool: list[bytes]) -> bytes:
    """A dump's value, which is pickled again; or its bytes."""
    if rng.random() < 0.3:
        return change_bytes(rng, data, pool)
    try:
        value = load_plain(data)
    except NotPlainError:
        return change_bytes(rng, data, pool)
    return pickle.dumps(change_value(rng, value))


class Target:
    """Files that a command reads, one of which is another with each input."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.change: Callable[[random.Random, bytes, list[bytes]], bytes]
        self.commands: tuple[tuple[str, ...], ...] = (("analyze", "--no-cache"),)
        self.files: tuple[str, ...]
        if kind == "nsys":
            export(folder / "export.sqlite")
            self.files, self.change = ("export.sqlite",), change_bytes
            self.reads = folder / "export.sqlite"
        elif kind == "dumps":
            for rank in range(3):
                (folder / f"rank_{rank}").write_bytes(pickle.dumps(a_dump(rank)))
            self.files, self.change = ("rank_1",), change_dump
            self.reads, self.commands = folder, (("hang",), ("hang", "--json"))
        elif kind == "snapshot":
            drawn = Drawn()
            draw_steps(drawn, 5, leak=640)
            drawn.oom(1 << 30, 0, None)
            self.reads = drawn.write(folder / "rank0.pickle")
            self.files, self.change = ("rank0.pickle",), change_dump
            self.commands = (("analyze",), ("analyze", "--json"))
        else:
            write_run(folder / "run", Shape(ranks=2, layers=2, steps=4, kernels=1))
            self.reads = folder / "run"
            if kind == "stream":
                self.files, self.change = ("run/rank00001.arrows",), change_bytes
                self.commands = (("analyze", "--no-cache", "--json"),)
            else:
                self.files = ("run/rank00001.json", "run/run.json")
                self.change = change_text
                self.commands = (*self.commands, ("hang", "--json"))
        self.whole = {name: (folder / name).read_bytes() for name in self.files}

    def read(self, name: str, data: bytes) -> str | None:
        """Run the commands over an input; the traceback of one that failed."""
        for file, content in self.whole.items():
            (self.folder / file).write_bytes(data if file == name else content)
        for command, *options in self.commands:
            result = CliRunner().invoke(
                fsdpdoctor_main, [command, str(self.reads), *options]
            )
            error = result.exception
            if error is not None and not isinstance(error, SystemExit):
                return "".join(traceback.format_exception(error))
        return None


def a_dump(rank: int) -> dict[str, Any]:
    """What a rank of three dumps as its second collective hangs."""
    entries = [
        {
            "record_id": at,
            "pg_id": 0,
            "process_group": ("0", "default_pg"),
            "collective_seq_id": at + 1,
            "p2p_seq_id": 0,
            "op_id": at,
            "profiling_name": "nccl:all_reduce",
            "input_sizes": [[3, 4]],
            "output_sizes": [[3, 4]],
            "input_dtypes": ["Float"],
            "output_dtypes": ["Float"],
            "state": "completed" if at == 0 else "scheduled",
            "is_p2p": False,
            "frames": [{"name": "train", "filename": "train.py", "line": 3}],
        }
        for at in range(2 if rank else 1)
    ]
    return {
        "version": "2.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2]"}},
        "pg_status": {"0": {"last_enqueued_collective": len(entries)}},
        "entries": entries,
    }


@contextmanager
def lines_of_ours(reached: Lines) -> Iterator[None]:
    """Add the lines of ours that run meanwhile."""

    def look(frame: FrameType, event: str, _: object) -> Any:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            reached.add((frame.f_code.co_filename, frame.f_lineno))
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(None)


def fuzz(given: argparse.Namespace) -> int:
    """How many different finds there were."""
    rng = random.Random(given.seed)
    faulthandler.enable()  # what C code ends the process in is told, too,
    given.found.mkdir(parents=True, exist_ok=True)
    read_now = given.found / f"{given.what}-read-now"  # and its input stays here
    signal.signal(signal.SIGPROF, _too_long)
    resource.setrlimit(resource.RLIMIT_AS, (4 * MOST_MEMORY, 4 * MOST_MEMORY))
    seen: Lines = set()
    finds: set[str] = set()
    runs, told, begin = 0, 0.0, time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        target = Target(Path(name), given.what)
        corpus = [(file, data) for file, data in target.whole.items()]
        while (spent := time.monotonic() - begin) < 60 * given.minutes:
            file, data = rng.choice(corpus)
            if runs >= len(target.whole):
                pool = [other for _, other in corpus]
                data = target.change(rng, data, pool)
            reached: Lines = set()
            read_now.write_bytes(data)
            signal.setitimer(signal.ITIMER_PROF, HANG_S)
            try:
                with lines_of_ours(reached):
                    failed = target.read(file, data)
            except TimeoutError as error:
                failed = f"{error}"
            signal.setitimer(signal.ITIMER_PROF, 0)
            runs += 1
            if reached - seen:
                seen |= reached
                corpus.append((file, data))
            if failed is not None and (place := _place(failed)) not in finds:
                finds.add(place)
                say(f"{file}: {place}: {keep(given.found, data)}")
            if spent >= told + TELL_S:
                told = spent
                say(_progress(runs, spent, len(corpus), len(seen)))
    read_now.unlink(missing_ok=True)
    say(_progress(runs, spent, len(corpus), len(seen)))
    large = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 > MOST_MEMORY
    return len(finds) + large


def _too_long(*_: object) -> None:
    raise TimeoutError(f"an input took over {HANG_S} s of a processor")


def _place(failed: str) -> str:
    """A traceback's last line and the last place of ours in it."""
    ours = re.findall(r'File "[^"]*/(fsdpdoctor/[^"]+)", line (\d+)', failed)
    last = failed.strip().splitlines()[-1]
    return f"{':'.join(ours[-1]) if ours else ''} {last[:160]}"


def _progress(runs: int, spent: float, corpus: int, lines: int) -> str:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return (
        f"{runs:,} inputs in {spent / 60:.1f} min ({time.process_time() / 60:.1f} of a "
        f"processor), {lines} lines, corpus of {corpus}, peak {peak} MB"
    )


def main() -> None:
    """Fuzz for the time that was given; status 1 where something was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "what", choices=("stream", "header", "nsys", "dumps", "snapshot")
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--found", type=Path, default=Path("test-output/fuzz/found"))
    given = parser.parse_args()
    shutil.rmtree(given.found / given.what, ignore_errors=True)
    given.found = given.found / given.what
    sys.exit(1 if fuzz(given) else 0)


if __name__ == "__main__":
    main()
