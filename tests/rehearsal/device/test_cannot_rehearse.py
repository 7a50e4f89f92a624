"""A script that cannot be rehearsed gets one line, and no number."""

from __future__ import annotations

import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdpdoctor.errors import RehearsalError
from fsdpdoctor.network import parse_network
from fsdpdoctor.rehearsal.device.cannot_rehearse import assumptions, explain
from fsdpdoctor.rehearsal.device.spec import load_spec
from fsdpdoctor.rehearsal.device.virtual_device import Tally, VirtualDevice
from fsdpdoctor.rehearsal.device.virtual_session import on_device
from fsdpdoctor.rehearsal.rehearsal import Rehearsal, rehearsing

HEAD = """
import torch
x = torch.randn(8, 16, device="cuda")
"""


class Ended:
    """How a script has ended on a modelled device."""

    def __init__(self, path: Path, body: str) -> None:
        path.write_text(HEAD + textwrap.dedent(body))
        device = VirtualDevice(load_spec("h100"))
        job = Rehearsal(wire=parse_network("ib400"), world_size=8)
        self.error: BaseException | None = None
        self.said: RehearsalError | None = None
        self.tally: Tally = device.tally
        with rehearsing(job, virtual=device.collective), on_device(device):
            try:
                exec(compile(path.read_text(), str(path), "exec"), {"__name__": "s"})
            except Exception as error:
                self.error = error
                self.said = explain(error, device)


@pytest.fixture(name="run")
def _run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Ended]:
    monkeypatch.chdir(tmp_path)
    return lambda body: Ended(tmp_path / "train.py", body)


Run = Callable[[str], Ended]

CANNOT = {
    "a custom operator": (
        """
        @torch.library.custom_op("unrehearsed::scale", mutates_args=())
        def scale(x: torch.Tensor) -> torch.Tensor:
            return x * 2
        torch.ops.unrehearsed.scale(x)
        """,
        "unrehearsed::scale at train.py:8 is an operator with a kernel of its own",
        'torch.library.register_fake("unrehearsed::scale")',
    ),
    "a kernel for CUDA alone": (
        """
        library = torch.library.Library("unrehearsed2", "DEF")
        library.define("norm(Tensor x) -> Tensor")
        library.impl("norm", lambda x: x * 2, "CUDA")
        torch.ops.unrehearsed2.norm(x)
        """,
        "unrehearsed2::norm at train.py:8",
        "register_fake",
    ),
    "an operator of torch's without shapes": (
        """
        torch.histogram(x, 4)
        """,
        "aten::histogram",
        "Replace it in the rehearsed script",
    ),
    "flash attention": (
        """
        from flash_attn_interface import flash_attn_func
        """,
        "train.py:5 imports flash_attn_interface",
        "scaled_dot_product_attention",
    ),
    "a compiled extension": (
        """
        def check(x):
            raise RuntimeError("input must be a CUDA tensor")
        check(x)
        """,
        "train.py:6 calls compiled code",
        "register_fake",
    ),
    "a CUDA graph": (
        """
        torch.cuda.CUDAGraph()
        """,
        "CUDA graphs at train.py:5 needs a GPU",
        "Leave it out",
    ),
    "sizes that depend on data": (
        """
        counts = torch.bincount((x[0] > 0).long(), minlength=2)
        torch.split(x, counts.tolist())
        """,
        "train.py:6 ends in: split_with_sizes expects",
        "sizes that the host knows",
    ),
    "a loop that waits for a number": (
        """
        while x.sum().item() < 2:
            x = x + 1
        """,
        "train.py:5 has read 10 numbers of the device",
        "fixed count",
    ),
}


@pytest.mark.parametrize("name", list(CANNOT))
def test_it_is_said_what_and_where_and_what_to_do(
    name: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operation, the script's line, the way out, in one line."""
    from fsdpdoctor.rehearsal.device import host_values

    monkeypatch.setattr(host_values, "MOST_READS", 10)
    body, what, instead = CANNOT[name]
    ended = run(body)
    assert ended.said is not None
    assert f"cannot rehearse: {what}" in str(ended.said)
    assert instead in str(ended.said)
    assert "\n" not in str(ended.said)


def test_a_triton_kernel_is_named(run: Run, tmp_path: Path) -> None:
    """By its function's name, from the frames of its launch."""
    folder = tmp_path / "triton"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "class JITFunction:\n"
        "    def __init__(self, fn): self.fn = fn\n"
        "    def run(self): raise RuntimeError('0 active drivers ([])')\n"
    )
    sys.path.insert(0, str(tmp_path))
    try:
        ended = run(
            """
            import triton
            def swiglu(): pass
            triton.JITFunction(swiglu).run()
            """
        )
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("triton")
    assert "the Triton kernel swiglu at train.py:7 runs on a GPU only" in str(
        ended.said
    )


@pytest.mark.parametrize(
    "body", ["raise ValueError('mine')", "x @ torch.ones(3, 3, device='cuda')"]
)
def test_a_scripts_own_error_is_its_own(run: Run, body: str) -> None:
    """With its traceback, in which no frame is the rehearsal's."""
    ended = run(body)
    assert ended.said is None
    assert ended.error is not None
    trace: types.TracebackType | None = ended.error.__traceback__
    paths = []
    while trace is not None:
        paths.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    assert not [p for p in paths if "fsdpdoctor/rehearsal" in p]


def test_what_is_finite_is_known_without_numbers(run: Run) -> None:
    """A guard against NaN lets the step through, and nothing was made up."""
    ended = run(
        """
        bad = torch.isnan(x) | torch.isinf(x)
        assert torch.isfinite(x).all()
        assert not torch.isnan(x).any().item()
        assert x[torch.isfinite(x).all(1)].shape == (8, 16)
        assert not bad.any()
        """
    )
    assert ended.error is None
    assert assumptions(ended.tally) == []


def test_what_was_made_up_is_said(run: Run) -> None:
    """Sizes taken to be half, whole numbers that were 1, kernels priced by bytes."""
    ended = run(
        """
        kept = x[x.sum(1) > 0]
        assert kept.shape == (4, 16)
        rows = torch.ones(8, dtype=torch.int64, device="cuda").cumsum(0)[-1].item()
        library = torch.library.Library("guessed", "DEF")
        library.define("norm(Tensor x) -> Tensor")
        library.impl("norm", lambda x: torch.empty_like(x), "Meta")
        torch.ops.guessed.norm(x)
        """
    )
    assert ended.error is None
    said = assumptions(ended.tally)
    assert "train.py:7 (1 times)" in said[0]
    assert "aten.index.Tensor at train.py:5 (1 times)" in said[1]
    assert "priced by the bytes they move: guessed.norm;" in said[2]


def test_a_number_alone_is_the_devices_index(run: Run) -> None:
    """As with CUDA."""
    assert run("assert torch.device(0) == torch.device('cuda:0')").error is None


def test_a_wrapped_operator_of_ones_own_is_rehearsed(run: Run) -> None:
    """With shapes and FLOPs it is priced as a product of that many."""
    ended = run(
        """
        from torch.utils.flop_counter import register_flop_formula
        library = torch.library.Library("priced", "DEF")
        library.define("mm(Tensor x) -> Tensor")
        library.impl("mm", lambda x: torch.empty_like(x), "Meta")
        register_flop_formula(torch.ops.priced.mm)(lambda *_, **__: 10**12)
        torch.ops.priced.mm(x)
        """
    )
    assert ended.error is None
    assert assumptions(ended.tally) == []
    assert ended.tally.ns["matmul"] > 1_000_000
