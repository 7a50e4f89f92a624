"""Fuzzes both readers of traces, guided by the code that each input reaches.

    python -m tests.benchmarks.fuzz_scan c --minutes 20
    python -m tests.benchmarks.fuzz_scan python --minutes 20     # pip install atheris

`c` builds the scanner with gcc under the address and undefined-behaviour sanitizers
and holds it against msgspec, chunk by chunk: columns must be equal. `python` reads
whole files through framing, msgspec and salvage with Atheris (libFuzzer), and holds
the C scanner against that. What is found goes to `--found`; the inputs that reach new
code go to `--corpus`, which a run begins with, too. tests/importers/reader/corpus holds
those of past runs, and test_decoders.py reads them all.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
import importlib.machinery
import importlib.util
import os
import random
import resource
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import numpy.typing as npt

from fsdpdoctor.errors import InputError
from fsdpdoctor.importers.reader.decode_c import OP_CATEGORIES, SCANNED, CDecoder
from fsdpdoctor.importers.reader.decode_json import decode_chunk
from fsdpdoctor.importers.reader.read_trace import Decode, scan_file
from fsdpdoctor.importers.reader.trace_file import KEPT_OP_PREFIXES, TraceFile
from tests.benchmarks.fuzz_mutations import SEEDS, mutate
from tests.importers.reader.same_rows import chunks_of, outcomes, same

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests" / "importers" / "reader" / "corpus"
ASAN = "libasan.so"
HANG_S = 20
"""Of a few kilobytes, which take milliseconds; sanitizers and load included."""

COVERAGE = """
#include <stdint.h>
#define EDGES 16384
uint8_t edges[EDGES];
static uintptr_t before;
/* gcc calls this in every basic block: an edge is two that follow each other. */
void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    here = (here >> 1) ^ (here >> 13);
    edges[(here ^ before) % EDGES]++;
    before = here >> 1;
}
"""
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def build(folder: Path) -> Path:
    """The scanner with sanitizers and coverage."""
    (folder / "coverage.c").write_text(COVERAGE)
    common = ["gcc", "-g", "-O1", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    cover, scan = folder / "coverage.o", folder / "scan.o"
    library = folder / "_scan.so"
    for command in (
        [*common, "-c", str(folder / "coverage.c"), "-o", str(cover)],
        [
            *common,
            *SANITIZERS,
            "-fsanitize-coverage=trace-pc",
            "-c",
            str(ROOT / "fsdpdoctor" / "_scan.c"),
            "-o",
            str(scan),
        ],
        [
            *("gcc", "-shared", *SANITIZERS, str(cover), str(scan)),
            *("-o", str(library)),
        ],
    ):
        subprocess.run(command, check=True)
    return library


def loaded(library: Path) -> ModuleType:
    """The extension at a path."""
    loader = importlib.machinery.ExtensionFileLoader("fsdpdoctor._scan", str(library))
    spec = importlib.util.spec_from_file_location("fsdpdoctor._scan", loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def decoder(module: ModuleType, *, every_op: bool) -> CDecoder:
    """A decoder of one file."""
    kept = () if every_op else KEPT_OP_PREFIXES
    return CDecoder(functools.partial(module.Scanner, SCANNED, *OP_CATEGORIES, kept))


def with_sanitizers(given: argparse.Namespace) -> None:
    """Start again where the sanitizer's library was not loaded first."""
    if ASAN in os.environ.get("LD_PRELOAD", ""):
        return
    found = subprocess.run(
        ["gcc", f"-print-file-name={ASAN}"], capture_output=True, text=True, check=True
    )
    # Python itself never frees what it holds to its end, so leaks are told by memory.
    options = "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"
    environment = os.environ | {
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1",
    }
    command = [sys.executable, "-m", "tests.benchmarks.fuzz_scan", *sys.argv[1:]]
    os.execve(sys.executable, command, environment)


def read_corpus(folder: Path) -> list[bytes]:
    """The inputs of past runs."""
    files = sorted(folder.glob("*")) if folder.is_dir() else []
    return [path.read_bytes() for path in files]


def keep(folder: Path, data: bytes) -> Path:
    """Write an input under the name of its content."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha1(data, usedforsecurity=False).hexdigest()[:16]
    path.write_bytes(data)
    return path


class Coverage:
    """Which edges were reached, and how often in powers of two."""

    def __init__(self, library: Path) -> None:
        table = (ctypes.c_uint8 * 16384).in_dll(ctypes.CDLL(str(library)), "edges")
        self._edges: npt.NDArray[np.uint8] = np.ctypeslib.as_array(table)
        self._seen = np.zeros(16384, dtype=np.uint8)
        self._bit = np.array(
            [0] + [1 << min(n.bit_length() - 1, 7) for n in range(1, 256)],
            dtype=np.uint8,
        )

    def start(self) -> None:
        """Forget the last input."""
        self._edges[:] = 0

    def is_new(self) -> bool:
        """Whether the input reached what none has before it."""
        found = self._bit[self._edges]
        new = found & ~self._seen
        self._seen |= found
        return bool(new.any())

    @property
    def edges(self) -> int:
        """How many edges were reached so far."""
        return int((self._seen > 0).sum())


def fuzz_c(given: argparse.Namespace) -> int:
    """The scanner under sanitizers against msgspec; how many inputs differed."""
    with_sanitizers(given)
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as name:
        library = build(Path(name))
        module, coverage = loaded(library), Coverage(library)
        given.found.mkdir(parents=True, exist_ok=True)
        last = given.found / "last"  # what a crash or a hang leaves behind
        corpus, differing, runs, begin = list(SEEDS), 0, 0, time.monotonic()
        pending = [*SEEDS, *read_corpus(CORPUS / "chunks"), *read_corpus(given.corpus)]
        while (spent := time.monotonic() - begin) < 60 * given.minutes:
            data = pending.pop() if pending else mutate(rng, corpus)
            last.write_bytes(data)
            signal.alarm(HANG_S)
            parts = chunks_of(data)
            coverage.start()
            ways = [
                outcomes(parts, decoder(module, every_op=every), every_op=every)
                for every in (True, False)
            ]
            new = coverage.is_new()
            if new:
                corpus.append(data)
                keep(given.corpus, data)
            runs += 1
            expected = [
                outcomes(parts, decode_chunk, every_op=every) for every in (True, False)
            ]
            if ways != expected:
                differing += 1
                say(f"columns differ: {keep(given.found, data)}")
            if runs % 50_000 == 0:
                say(progress(runs, spent, len(corpus), coverage.edges))
        signal.alarm(0)
        last.unlink()
    say(progress(runs, spent, len(corpus), coverage.edges))
    return differing


def progress(runs: int, spent: float, corpus: int, edges: int) -> str:
    """Where a run stands."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return (
        f"{runs:,} inputs in {spent / 60:.1f} min, {edges} edges, corpus of {corpus}, "
        f"peak {peak} MB"
    )


def read_whole(path: Path, decode: Decode) -> TraceFile | str:
    """What is read of a file, or the error it gives."""
    try:
        return scan_file(path, decode)
    except InputError as error:
        return str(error)


def fuzz_python(given: argparse.Namespace) -> int:
    """Whole files through Atheris. It ends the process itself."""
    import atheris  # type: ignore[import-untyped]

    from fsdpdoctor import _scan
    from fsdpdoctor.importers.reader import chunks, decode_json, read_trace, repair

    for module in (chunks, decode_json, repair, read_trace):
        for name, value in vars(module).items():
            code = getattr(value, "__code__", None)
            if code is not None and value.__module__ == module.__name__:
                setattr(module, name, atheris.instrument_func(value))
    folder = Path(tempfile.mkdtemp(dir="/dev/shm"))
    path = folder / "trace.json"

    def one(data: bytes) -> None:
        # Small blocks, so that small inputs are cut like large files.
        chunks.BLOCK = 16 << (data[0] % 9) if data else 16
        path.write_bytes(data[1:])
        by_msgspec = read_whole(path, decode_chunk)
        by_c = read_whole(path, decoder(_scan, every_op=False))
        if isinstance(by_c, TraceFile) and isinstance(by_msgspec, TraceFile):
            equal = same(by_msgspec, by_c)
        else:
            equal = by_c == by_msgspec
        if not equal:
            raise AssertionError("the two decoders read this file differently")

    rng = random.Random(given.seed)

    def change(data: bytes, longest: int, seed: int) -> bytes:
        """Atheris's own changes and ours, in turn."""
        if seed % 2:
            return bytes(atheris.Mutate(data, longest))
        rng.seed(seed)
        return mutate(rng, [data, *SEEDS])[:longest]

    for data in (*whole_files(), *read_corpus(CORPUS / "files")):
        keep(given.corpus, data)
    given.found.mkdir(parents=True, exist_ok=True)
    atheris.Setup(
        [
            sys.argv[0],
            str(given.corpus),
            f"-max_total_time={60 * given.minutes}",
            f"-timeout={HANG_S}",
            "-rss_limit_mb=2048",
            "-max_len=4096",
            "-print_final_stats=1",
            f"-artifact_prefix={given.found}/",
            f"-seed={given.seed + 1}",
        ],
        one,
        custom_mutator=change,
    )
    atheris.Fuzz()
    return 0


def whole_files() -> list[bytes]:
    """Files to begin with: the seeds in three layouts, whole and cut."""
    made: list[bytes] = []
    for separator in (b",\n", b", ", b"\n  ,\n  "):
        text = b'{"schemaVersion": 1, "traceEvents": [\n' + separator.join(SEEDS * 2)
        made += [
            bytes([at]) + text + b'\n], "baseTimeNanoseconds": 7}' for at in (2, 5)
        ]
        made.append(b"\x04" + text[:-20])
    made.append(b"\x02" + b"[" + SEEDS[0] + b"]")
    return made


def say(text: str) -> None:
    """A line at once, also where it goes to a file."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    """Fuzz for the time that was given; status 1 where inputs differed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("c", "python"))
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", type=Path, default=Path("test-output/fuzz/corpus"))
    parser.add_argument("--found", type=Path, default=Path("test-output/fuzz/found"))
    given = parser.parse_args()
    sys.exit(1 if (fuzz_c if given.what == "c" else fuzz_python)(given) else 0)


if __name__ == "__main__":
    main()
