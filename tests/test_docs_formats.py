"""The pages on JSON and on run folders against the code and what it writes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import IntEnum, IntFlag
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

import msgspec
import pytest
from click.testing import CliRunner

from fsdpdoctor import plan_file, schema
from fsdpdoctor.analysis.stall_causes import CAUSES
from fsdpdoctor.analysis.step_budget import PARTS
from fsdpdoctor.changes.fsdp1_migration import migration
from fsdpdoctor.changes.plan import Plan
from fsdpdoctor.cli import main
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.rehearsal.device.memory.verdict import as_json
from fsdpdoctor.renderers.sweep import encode_sweep
from fsdpdoctor.renderers.tune import encode_tuning
from fsdpdoctor.report import diagnose
from fsdpdoctor.report.check import Check, encode_check
from fsdpdoctor.report.comparison import Comparison
from fsdpdoctor.report.value import Report, encode
from fsdpdoctor.run import in_memory
from fsdpdoctor.schema import (
    NO_TIME,
    UNKNOWN,
    Activity,
    Bucket,
    Evidence,
    MemoryShare,
    MemoryStep,
    RankHeader,
    RunHeader,
    StartSpec,
    UnitMemory,
)
from fsdpdoctor.schema.step_record import NAMES, SCALARS, TABLES
from fsdpdoctor.testing import Call, Sample, draw
from tests.hang.test_diagnose import dumped
from tests.importers.generated import generated_rank
from tests.markdown import sections
from tests.planning.test_sweep import outcome
from tests.renderers.test_sweep import SWEEP
from tests.renderers.test_tune import TUNING
from tests.rig.virtual_device import Job, rehearsed, train

ROOT = Path(__file__).parent.parent
TRACES = ROOT / "traces"
JSON = sections(ROOT / "docs" / "json.md")
FORMAT = sections(ROOT / "docs" / "run-format.md")
MEASURES = sections(ROOT / "docs" / "measures.md")


class Field(NamedTuple):
    """A field of a JSON document, by its path."""

    type: str
    nullable: bool


Fields = dict[str, Field]


def documented(rows: list[tuple[str, ...]]) -> Fields:
    """The fields of a page's table: path, type, null, meaning."""
    return {path: Field(type, bool(null)) for path, type, null, _ in rows}


def is_record(kind: Any) -> bool:
    """Whether it is an object in JSON."""
    return is_dataclass(kind) or hasattr(kind, "__struct_fields__")


def types_of(kind: Any) -> dict[str, Any]:
    """The fields of an object, by their names in JSON."""
    if is_dataclass(kind):
        return get_type_hints(kind)
    return {f.encode_name: f.type for f in msgspec.structs.fields(kind)}


def declared(kind: Any, path: str = "") -> Iterator[tuple[str, Field]]:
    """The fields that a dataclass has in JSON."""
    arguments, nullable = get_args(kind), False
    if isinstance(kind, UnionType):
        nullable = NoneType in arguments
        rest = [argument for argument in arguments if argument is not NoneType]
        if len(rest) > 1:
            yield path, Field(" or ".join(sorted(r.__name__ for r in rest)), nullable)
            return
        kind, arguments = rest[0], get_args(rest[0])
    origin = get_origin(kind)
    if is_record(kind):
        if path:
            yield path, Field("object", nullable)
        for name, inner in types_of(kind).items():
            yield from declared(inner, f"{path}.{name}" if path else name)
    elif origin is tuple:
        yield path, Field("list", nullable)
        if is_record(arguments[0]):
            yield from declared(arguments[0], f"{path}[]")
    elif origin in (dict, Mapping):
        yield path, Field("map", nullable)
        if is_record(arguments[1]):
            yield from declared(arguments[1], f"{path}.<name>")
    else:
        yield path, Field("str" if origin is Literal else kind.__name__, nullable)


TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "map": (dict,),
    "list": (list,),
    "str": (str,),
    "bool": (bool,),
    "int": (int,),
    "float": (float, int),
}


def faults(value: object, fields: Fields, seen: set[str], path: str) -> Iterator[str]:
    """Where a document has what its page does not say. Fills the paths `seen`."""
    if path not in fields:
        yield f"{path} is not documented"
        return
    seen.add(path)
    field = fields[path]
    if value is None:
        if not field.nullable:
            yield f"{path} is null"
        return
    words = field.type.split(" or ")
    expected = tuple(kind for word in words for kind in TYPES[word])
    if not isinstance(value, expected) or (
        isinstance(value, bool) and "bool" not in words
    ):
        yield f"{path} is {value!r}, not {field.type}"
    elif isinstance(value, list) and f"{path}[]" in fields:
        for item in value:
            yield from faults(item, fields, seen, f"{path}[]")
    elif isinstance(value, dict) and f"{path}.<name>" in fields:
        for item in value.values():
            yield from faults(item, fields, seen, f"{path}.<name>")
    elif isinstance(value, dict) and field.type == "object":
        for name, item in value.items():
            inner = f"{path}.{name}" if path else name
            yield from faults(item, fields, seen, inner)


def disagreements(documents: list[Any], fields: Fields) -> list[str]:
    """What documents have and their page does not say, and what none of them has."""
    whole = {"": Field("object", nullable=False), **fields}
    seen: set[str] = set()
    wrong = [f for d in documents for f in faults(d, whole, seen, "")]
    return [
        *wrong,
        *(f"{path} is in no document" for path in whole if path not in seen),
    ]


def printed(*arguments: str) -> Any:
    """The JSON that a command prints."""
    result = CliRunner().invoke(main, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """A job of two ranks, of which one was killed and one's record is cut; two
    rehearsals; and a trace with kernels.
    """
    cut = tmp_path_factory.mktemp("run") / "cut"
    shutil.copytree(TRACES / "killed-rank", cut)
    stream = cut / "rank00000.arrows"
    stream.write_bytes(stream.read_bytes()[:-200])
    header = RunHeader(run_id="drawn", source="kineto", world_size=8)
    trace = encode(diagnose(in_memory(header, [generated_rank()])))
    script = draw(
        "other 0....\nother_wait 0....\nforward .00..\neval_root_forward ....0",
        calls=(Call(kind="all_reduce", site="train.py:3", via="full_tensor"),),
        samples=(Sample(at=3.5, activity=Activity.SLEEP, site="train.py:4"),),
    )
    share = MemoryShare(bucket=Bucket.OTHER, bytes=1)
    memory = MemoryStep(step=1, peak=(share,), units=(UnitMemory(unit=0),))
    start = StartSpec(**dict.fromkeys(StartSpec.__dataclass_fields__, 1))
    told = replace(script.header, memory=memory, start=start)
    script = replace(script, header=told)
    drawn = encode(diagnose(in_memory(replace(header, source="recorded"), [script])))
    others = (TRACES / "exposed-all-gather", TRACES / "slow-loader")
    return [printed("analyze", str(path)) for path in (cut, *others)] + [
        json.loads(trace),
        json.loads(drawn),
    ]


def test_every_field_of_a_report_is_documented(reports: list[Any]) -> None:
    """As it is declared, and as it is printed."""
    fields = documented(JSON["Report"].rows)

    assert fields == dict(declared(Report))
    assert disagreements(reports, fields) == []


def test_every_field_of_a_forecast_is_documented() -> None:
    """All that `whatif --json` prints, and nothing else."""
    run = str(TRACES / "exposed-all-gather")
    fields = documented(JSON["What-if"].rows)

    assert disagreements([printed("whatif", run, "--prefetch", "1")], fields) == []


def test_every_field_of_a_comparison_is_documented() -> None:
    """All that `compare --json` prints, and nothing else."""
    fields = documented(JSON["Comparison"].rows)
    a, b = str(TRACES / "exposed-all-gather"), str(TRACES / "healthy-prefetch")

    assert fields == dict(declared(Comparison))
    both = [printed("compare", a, b), printed("compare", b, a)]
    assert disagreements(both, fields) == []


def test_every_field_of_a_tuning_is_documented() -> None:
    """All that `tune --json` prints, and nothing else."""
    fields = documented(JSON["Tuning"].rows)
    nothing = replace(TUNING, rows=(), stopped=None, withheld="why")
    documents = [json.loads(encode_tuning(tuning)) for tuning in (TUNING, nothing)]

    assert disagreements(documents, fields) == []


def test_every_field_of_a_memory_plan_is_documented(tmp_path: Path) -> None:
    """With all that can be asked for, and with nothing of it."""
    fields = documented(JSON["Memory plan"].rows)
    model = ["plan", "8e9", "--layers", "32"]
    asked = ["--fits", "80GiB", "--tokens-per-second", "1e4", "--price", "2"]

    config = tmp_path / "config.json"
    config.write_text('{"model_type": "gpt2"}')
    plans = [printed(*model), printed(*model, *asked), printed("plan", str(config))]
    assert disagreements(plans, fields) == []


def test_every_field_of_a_sweep_is_documented() -> None:
    """With and without a price, fitting and not."""
    fields = documented(JSON["Sweep"].rows)
    images = outcome(0, 20, tokens=None, samples=50)
    swept = [SWEEP, replace(SWEEP, price_per_hour=None, outcomes=(images,))]
    assert disagreements([json.loads(encode_sweep(s)) for s in swept], fields) == []


def test_every_field_of_a_verdict_is_documented() -> None:
    """Of a rehearsal that fits, of one that does not, of one without a tensor."""
    found = []
    for memory_gib in (None, 0.001):
        job = Job(width=64, blocks=1, vocabulary=64, memory_gib=memory_gib)
        with rehearsed(job) as log:
            assert log.rig is not None
            found.append(as_json(log.rig.device, log.rig.ledger))
            train(job)
            found.append(as_json(log.rig.device, log.rig.ledger))
    said = [json.loads(each) for each in found]
    assert [one["fits"] for one in said] == [True, True, True, False]
    assert disagreements(said, documented(JSON["Verdict of a rehearsal"].rows)) == []


def test_every_field_of_a_run_s_hang_is_documented() -> None:
    """As far as a killed rank has them."""
    whole = {"": Field("object", nullable=False)}
    whole |= documented(JSON["Hang of a run"].rows)
    document = printed("hang", str(TRACES / "killed-rank"))

    assert list(faults(document, whole, set(), "")) == []


def test_every_field_of_a_hang_by_dumps_is_documented(tmp_path: Path) -> None:
    """Of one that has a culprit, and of one where all stand in one collective."""
    fields = documented(JSON["Hang by dumps"].rows)
    documents = []
    for name, late in (("mismatch", "broadcast"), ("stuck", "all_reduce")):
        folder = tmp_path / name
        folder.mkdir()
        for rank in range(3):
            operation = late if rank == 1 else "all_reduce"
            dumped(folder, rank, [(5, operation, "started")], enqueued=5)
        documents.append(printed("hang", str(folder)))

    assert disagreements(documents, fields) == []


def test_every_field_of_an_environment_is_documented() -> None:
    """All that `env --json` prints, and nothing else."""
    assert disagreements([printed("env")], documented(JSON["Environment"].rows)) == []


def test_every_field_of_a_check_is_documented() -> None:
    """Of a script of FSDP1; what is below `report` is the report's own."""
    fields = documented(JSON["Check"].rows)
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as F\n"
    check = Check(
        script="train.py",
        report=None,
        memory=None,
        ended="it ended",
        migration=migration(source + "F(model, use_orig_params=True)\n"),
        seconds=1.0,
    )

    assert disagreements([json.loads(encode_check(check))], fields) == []


def test_a_document_that_differs_is_seen() -> None:
    """Fields too many and too few, wrong types and nulls."""
    fields = documented(
        [
            ("a", "int", "", ""),
            ("b", "list", "sometimes", ""),
            ("b[]", "object", "", ""),
            ("b[].c", "float", "", ""),
            ("d", "str", "", ""),
        ]
    )

    assert disagreements([{"a": None, "b": [{"c": True, "e": 1}]}], fields) == [
        "a is null",
        "b[].c is True, not float",
        "b[].e is not documented",
        "d is in no document",
    ]


@pytest.mark.parametrize(
    ("heading", "header"), [("run.json", RunHeader), ("rank00000.json", RankHeader)]
)
def test_every_field_of_a_header_is_documented(heading: str, header: type) -> None:
    """As it is declared."""
    assert documented(FORMAT[heading].rows) == dict(declared(header))


def test_every_column_of_a_batch_is_documented() -> None:
    """Scalars, tables and names, in the order of the stream."""
    types = {
        **dict.fromkeys(SCALARS, "int64"),
        **dict.fromkeys(TABLES, "list of struct"),
        NAMES: "list of string",
    }
    rows = FORMAT["rank00000.arrows"].rows

    assert [row[:2] for row in rows] == list(types.items())


@pytest.mark.parametrize("name", TABLES)
def test_every_column_of_a_table_is_documented(name: str) -> None:
    """With its type, and what it holds where the source is silent."""
    words = {0: "0", UNKNOWN: "UNKNOWN", int(NO_TIME): "NO_TIME"}
    columns = [
        (field.name, field.metadata["dtype"], words[int(field.metadata["absent"])])
        for field in fields(TABLES[name])
    ]

    assert [row[:3] for row in FORMAT[name].rows] == columns


@pytest.mark.parametrize(
    "enum",
    [
        schema.Lane,
        schema.Phase,
        schema.Kind,
        schema.Flag,
        schema.Within,
        schema.Activity,
    ],
    ids=lambda e: e.__name__,
)
def test_every_number_has_its_word(enum: type[IntEnum | IntFlag]) -> None:
    """The value and name of every member."""
    members = [(str(int(m)), name) for name, m in enum.__members__.items()]

    assert [row[:2] for row in FORMAT[enum.__name__].rows] == members


def test_every_word_of_evidence_is_documented() -> None:
    """In the order of its class."""
    assert [row[0] for row in FORMAT["Evidence"].rows] == [str(e) for e in Evidence]


def test_every_counter_is_documented() -> None:
    """Those that more than one module names."""
    names = [v for name, v in vars(schema).items() if name.startswith("COUNTER_")]
    page = "\n".join(FORMAT["counters"].lines)
    written = re.findall(r"^\| `(\w+\.\w+)` \|", page, re.MULTILINE)

    assert sorted(written) == sorted(names)


def test_the_heartbeat_is_documented() -> None:
    """Fields and codes of a slot, and how many there are."""
    section = FORMAT["rank00000.beat"]
    codes = "<" + "".join(row[1] for row in section.rows)

    assert [row[0] for row in section.rows] == [field.name for field in fields(Beat)]
    assert codes == schema.HEARTBEAT.format
    assert f"{schema.HEARTBEAT_SLOTS} records" in "\n".join(section.lines)


def test_every_field_of_a_plan_file_is_documented() -> None:
    """What may be asked for, and what `run --apply` reads of it."""
    rows = [row[0] for row in FORMAT["Plan files"].rows]
    unit = "apply.units.<name>"
    settings = {f.name for f in fields(plan_file.Settings)} - {"world_size", "path"}

    assert {row for row in rows if row.startswith("plan.")} == {
        f"plan.{field.name}" for field in fields(Plan)
    }
    assert {row for row in rows if row.startswith("apply.")} == {
        *(f"apply.{name}" for name in settings),
        *("apply.mesh.replicate", "apply.mesh.shard", unit),
        *(f"{unit}.{field.name}" for field in fields(plan_file.UnitSettings)),
    }


def test_a_saved_plan_is_as_documented(tmp_path: Path) -> None:
    """Of one that changes settings of every sort."""
    path = tmp_path / "plan.json"
    options = ["--forward-prefetch", "1", "--reshard", "false", "--mesh", "2x4"]
    rows = {row[0]: Field(row[1], False) for row in FORMAT["Plan files"].rows}
    run = str(TRACES / "exposed-all-gather")

    printed("whatif", run, *options, "--merge", "2", "--save", str(path))
    seen: set[str] = set()
    whole = {"": Field("object", False), **rows}

    assert list(faults(json.loads(path.read_text()), whole, seen, "")) == []
    assert {"plan.merge", "apply.groups", "apply.mesh.shard"} < seen


def test_causes_and_parts_are_documented() -> None:
    """The causes in their order, every part of the budget."""
    assert [row[0] for row in MEASURES["Causes"].rows] == list(CAUSES)
    assert {row[0] for row in MEASURES["The step's budget"].rows} == set(PARTS)
