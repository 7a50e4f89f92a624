"""FD301, of units that are embeddings alone."""

from __future__ import annotations

from fsdpdoctor.detectors.reshard_policy import reshard_policy
from fsdpdoctor.finding import Finding, Severity
from fsdpdoctor.quantities import MS
from fsdpdoctor.run import RankData
from fsdpdoctor.testing import draw, measured, unit
from tests.detectors.answers import CUDA, codes, found

PICTURE = """
    all_gather           00..1...............
    forward              ..00..11............
    backward_all_gather  ................0...
    backward_wait        ................0...
    backward             ........11111111.000
"""


def drawn(name: str, picture: str = PICTURE) -> RankData:
    """A table of some class, and a layer that is kept gathered."""
    table = unit("embed", module_class=name)
    return draw(
        picture, CUDA, units=(table, unit("layers.0", reshard_after_forward=False))
    )


def of_tables(data: RankData) -> list[Finding]:
    """What is said of embeddings."""
    told = found(reshard_policy, measured(data))
    return [finding for finding in told if "embeddings alone" in finding.summary]


def test_a_table_that_is_gathered_in_backward() -> None:
    """1 MiB and 1 ms of 20, for a backward that reads no weight."""
    (finding,) = of_tables(drawn("Embedding"))

    assert finding.units == ("embed",)
    assert finding.phase == "backward"
    assert finding.severity == Severity.WARNING
    assert finding.cost_ns_per_step == MS
    assert finding.cost_bytes == 1 << 20
    assert codes(finding)[0].splitlines()[1:] == [
        'tables = ["embed"]',
        "for name in tables:",
        "    model.get_submodule(name).set_unshard_in_backward(False)",
    ]


def test_what_is_hidden_is_information() -> None:
    """The bytes are moved all the same."""
    hidden = PICTURE.replace("backward_wait        ................0...", "")
    (finding,) = of_tables(drawn("Embedding", hidden))

    assert finding.severity == Severity.INFO
    assert finding.cost_ns_per_step == 0


def test_a_class_of_ones_own_may_need_its_weight() -> None:
    """Only torch's tables are known; and what is not gathered again costs nothing."""
    assert of_tables(drawn("VocabParallelEmbedding")) == []
    once = "\n".join(x for x in PICTURE.splitlines() if "backward_" not in x)
    assert of_tables(drawn("Embedding", once)) == []
