"""`fsdpdoctor check`, as a user types it: scripts with seeded faults, and without."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fsdpdoctor.cli import check as check_command
from fsdpdoctor.cli import main
from fsdpdoctor.cli.processes.first_steps import FirstSteps
from fsdpdoctor.run import RankData, in_memory, save_run
from fsdpdoctor.schema import RunHeader
from fsdpdoctor.testing import draw
from tests.cli.test_cli import PICTURE
from tests.renderers.test_renderers import finding, report_with
from tests.rig.changed import replace
from tests.rig.ranks import run_python

MODEL = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32000, 512)
        self.layers = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(512, 32000)
    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)

def sharded(blocks):
    model = Model().cuda()
    if blocks:
        for part in (model.embed, *model.layers, model.head):
            fully_shard(part, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)

def whole():
    return sharded(True)

def train(model, optimizer):
    for _ in range(1_000_000):
        tokens = torch.randint(0, 32000, (2, 128), device="cuda")
        logits = model(tokens).flatten(0, 1).float()
        nn.functional.cross_entropy(logits, tokens.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

START = """
import os
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
"""


def check(script: Path, body: str, *options: str) -> tuple[int, str]:
    """The exit status and what is printed, for a script with a body."""
    script.write_text(MODEL + body)
    command = ("-m", "fsdpdoctor", "check", "--limit", "230", *options, str(script))
    done = run_python(*command)
    return done.status, done.stdout + done.stderr


@pytest.mark.ranks
def test_seeded_faults_are_found(tmp_path: Path) -> None:
    """One unit for all, an optimizer that was built before it; as SARIF, status 1."""
    script = tmp_path / "train.py"
    body = START + (
        "model = Model().cuda()\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "fully_shard(model, mp_policy=policy)\n"
        "train(model, optimizer)\n"
    )
    out = tmp_path / "found.sarif"
    options = ("--format", "sarif", "--out", str(out), "--fail-on", "critical")
    status, _ = check(script, body, *options)

    assert status == 1
    (run,) = json.loads(out.read_text())["runs"]
    levels = {one["ruleId"]: one["level"] for one in run["results"]}
    assert levels == {"FD504": "error", "FD201": "warning"}
    line = run["results"][0]["locations"][0]["physicalLocation"]["region"]["startLine"]
    assert "fully_shard(" in script.read_text().splitlines()[line - 1]


@pytest.mark.slow
def test_a_healthy_script_is_quiet(tmp_path: Path) -> None:
    """Its units are shown, and that it fits; nothing is a warning; 0 for CI."""
    body = START + (
        "model = sharded(True)\ntrain(model, torch.optim.AdamW(model.parameters()))\n"
    )
    status, text = check(tmp_path / "train.py", body, "--fail-on", "warning")

    assert status == 0
    assert "WARNING" not in text
    assert "CRITICAL" not in text
    assert "\nfits: " in text
    assert "6 x Block, 2.1 M parameters, reshard_after_forward=True" in text


@pytest.mark.slow
def test_a_factory_is_a_model_without_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """module:factory, from the working directory: the tree of what it returns."""
    (tmp_path / "mine.py").write_text(MODEL)
    options = ("-m", "fsdpdoctor", "check", "--limit", "230", "mine:whole")
    monkeypatch.chdir(tmp_path)
    done = run_python(*options)

    assert done.status == 0
    assert "6 x Block, 2.1 M parameters" in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "words", "limit_s"),
    [
        ("raise KeyError('x')\n", "KeyError", 230),
        ("print('no training')\n", "was not judged: it trained no model", 230),
        (START + "while True: pass\n", "--limit gives them longer", 20),
    ],
)
def test_what_cannot_be_judged_says_why(
    body: str, words: str, limit_s: int, tmp_path: Path
) -> None:
    """One line, no traceback, and never that all is well."""
    script = tmp_path / "train.py"
    script.write_text(MODEL + body)
    limit = ("--limit", str(limit_s))
    done = run_python("-m", "fsdpdoctor", "check", *limit, str(script))

    assert done.status in (1, 2)
    assert words in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "nothing to change" not in done.stdout + done.stderr


SEEDED = {
    "a slice of the mesh": (
        (
            "from torch.distributed.device_mesh import init_device_mesh\n"
            "names = ('replicate', 'shard')\n"
            "mesh = init_device_mesh('cuda', (2, 4), mesh_dim_names=names)['shard']\n"
            "model = Model().cuda()\n"
            "for part in (model.embed, *model.layers, model.head):\n"
            "    fully_shard(part, mesh=mesh, mp_policy=policy)\n"
            "fully_shard(model, mesh=mesh, mp_policy=policy)\n"
            "train(model, torch.optim.AdamW(model.parameters()))\n"
        ),
        "WARNING  FD501",
    ),
    "no shards at all": (
        (
            "model = nn.parallel.DistributedDataParallel(Model().cuda())\n"
            "train(model, torch.optim.AdamW(model.parameters()))\n"
        ),
        "CRITICAL  FD506",
    ),
    "compiled around its units": (
        (
            "model = sharded(True)\n"
            "optimizer = torch.optim.AdamW(model.parameters())\n"
            "train(torch.compile(model), optimizer)\n"
        ),
        "WARNING  FD505",
    ),
    "a method that is not forward, of a root with its own parameters": (
        (
            "Model.encode = lambda self, tokens: Model.forward(self, tokens)\n"
            "model = sharded(False)\n"
            "train(model.encode, torch.optim.AdamW(model.parameters()))\n"
        ),
        "FD408",
    ),
    "a method that is not forward, of units that each gather themselves": (
        (
            "Model.encode = lambda self, tokens: Model.forward(self, tokens)\n"
            "model = sharded(True)\n"
            "train(model.encode, torch.optim.AdamW(model.parameters()))\n"
        ),
        "WARNING  FD504",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDED)
def test_what_settings_and_errors_tell_is_found(name: str, tmp_path: Path) -> None:
    """Without a second rank, a compiler or a step that ends."""
    body, words = SEEDED[name]
    _, text = check(tmp_path / "train.py", START + body)

    assert words in text


# In this process: the rehearsal is played, and leaves what was drawn.

FITS = "fsdpdoctor: fits: 10 of 80 GiB"


@dataclass
class Played:
    """What the rehearsal leaves, and what it was asked."""

    done: FirstSteps
    ranks: tuple[RankData, ...] = ()
    asked: list[str] = field(default_factory=list)
    driver: str = ""

    def __call__(
        self, arguments: Sequence[str], folder: Path, limit_s: float
    ) -> FirstSteps:
        """As `rehearse_first_steps`."""
        self.asked = list(arguments)
        if (folder / "factory.py").exists():
            self.driver = (folder / "factory.py").read_text()
        if self.ranks:
            header = RunHeader(run_id="a", source="rehearsal", world_size=8)
            out = Path(arguments[list(arguments).index("--out") + 1])
            save_run(in_memory(header, self.ranks), out)
        return self.done


def play(
    monkeypatch: pytest.MonkeyPatch,
    status: int | None = 0,
    said: tuple[str, ...] = (),
    ranks: tuple[RankData, ...] = (),
) -> Played:
    """A rehearsal that ends so."""
    done = FirstSteps(status=status, said=said, seconds=2.0)
    played = Played(done=done, ranks=ranks)
    monkeypatch.setattr(check_command, "rehearse_first_steps", played)
    return played


def typed(*words: str | Path) -> Result:
    """The command in this process."""
    return CliRunner().invoke(main, ["check", *map(str, words)])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A file of a script; nobody runs it."""
    path = tmp_path / "train.py"
    path.write_text("import torch\n\nmodel = fsdp.fully_shard(model)\nfully_shard(x)\n")
    return path


def test_json_has_what_was_judged(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Findings that need no timing, and the word on memory; 1 where asked for."""
    played = play(monkeypatch, said=(FITS,), ranks=(draw(PICTURE),))
    options = ("--world-size", "64", "--format", "json", "--fail-on", "info")
    result = typed(*options, script, "--lr", "1")
    told = json.loads(result.stdout)

    job = ["--on", "h100", "--steps", "0:3", "--stop-after", "3", "--world-size", "64"]
    assert played.asked[:8] == job
    assert played.asked[-3:] == [str(script), "--lr", "1"]
    assert told["memory"] == "fits: 10 of 80 GiB"
    assert (told["script"], told["ended"]) == (str(script), None)
    codes = {one["code"] for one in told["report"]["findings"]}
    assert all(code.startswith(("FD105", "FD2", "FD30", "FD5")) for code in codes)
    assert result.exit_code == (1 if codes else 0)


def test_text_goes_to_a_file_where_asked(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as on the terminal; a mesh takes the place of the world's size."""
    played = play(monkeypatch, said=(FITS,), ranks=(draw(PICTURE),))
    shown = typed("--mesh", "2x4", script)
    assert played.asked[6:8] == ["--mesh", "2x4"]
    assert shown.exit_code == 0
    assert "fits: 10 of 80 GiB" in shown.stdout

    out = tmp_path / "check.txt"
    assert typed("--out", out, script).stdout == ""
    assert "fits: 10 of 80 GiB" in out.read_text()


def test_a_modules_name_is_run_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """`-m`: there is no file to look into."""
    played = play(monkeypatch, ranks=(draw(PICTURE),))
    assert typed("-m", "pkg.train", "--lr", "1").exit_code == 0
    assert played.asked[-4:] == ["-m", "pkg.train", "--lr", "1"]


def test_a_factorys_driver_imports_it_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`module:factory`, from the working directory; what is none is refused."""
    monkeypatch.chdir(tmp_path)
    played = play(monkeypatch, ranks=(draw(PICTURE),))
    assert typed("pkg.mine:whole").exit_code == 0
    compile(played.driver, "factory.py", "exec")
    assert f"sys.path[0] = {str(tmp_path)!r}" in played.driver
    assert "from pkg.mine import whole" in played.driver
    for wrong in ("train.py", "pkg.mine:", "a b:c", "a:b()"):
        result = typed(wrong)
        assert result.exit_code == 2
        assert result.stderr == (
            f"Error: cannot check {wrong}: there is no such file\n"
        )


@pytest.mark.parametrize(
    ("status", "said", "words"),
    [
        (None, ("epoch 1",), "its first 3 steps took more than 2 s; --limit gives"),
        (0, (), "it trained no model that fully_shard has sharded"),
        (1, (), "it ended with status 1: it said nothing"),
        (1, ("KeyError: x", FITS), "it ended with status 1: KeyError: x"),
        (2, (FITS,), "it ended with status 2: fits: 10 of 80 GiB"),
        (1, ("token=sk-abcdefghijklmnop",), "it ended with status 1: token=<redacted>"),
    ],
)
def test_why_nothing_was_judged(
    status: int | None,
    said: tuple[str, ...],
    words: str,
    script: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Status 2, and the script's own last line, without its secrets."""
    play(monkeypatch, status=status, said=said)
    result = typed("--format", "json", script)
    assert result.exit_code == 2
    assert json.loads(result.stdout)["ended"].startswith(words)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, 3),
        ("def f(:\n", 1),
        ("model = 1\n", 1),
    ],
)
def test_sarif_points_to_where_it_shards(
    text: str | None, line: int, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the first call of `fully_shard`; to the first line where there is none."""
    if text is not None:
        script.write_text(text)
    play(monkeypatch, ranks=(draw(PICTURE),))
    report = report_with(findings=(replace(finding(), code="FD201"),))
    monkeypatch.setattr(check_command, "untimed", lambda _: report)
    result = typed("--format", "sarif", script)
    (run,) = json.loads(result.stdout)["runs"]
    (place,) = run["results"][0]["locations"]
    assert place["physicalLocation"]["region"]["startLine"] == line
    assert place["physicalLocation"]["artifactLocation"]["uri"] == str(script)
