"""Metrics of drawn runs, to the nanosecond; and the files that go with them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.metrics_core import Metric

from fsdpdoctor.exporters.prometheus import RECENT, metrics_of
from fsdpdoctor.quantities import MS
from fsdpdoctor.rank_end_files import Beat
from fsdpdoctor.run import RankData
from fsdpdoctor.testing import draw, measured
from tests.rig.changed import replace

DOCS = Path(__file__).parents[2] / "docs"

PICTURE = """
    all_gather  .0000.1111......
    wait        .0000.1111......
    forward     .....0....111...
    backward    .............100
"""
"""Steps of 16 ms, of which two gathers of 4 ms are waited for."""


def of(*ranks: RankData) -> dict[str, Metric]:
    """The metrics of a run, by name."""
    return {found.name: found for found in metrics_of(measured(*ranks))}


def values(metric: Metric, name: str = "") -> dict[str, float]:
    """By the one label that it has."""
    return {
        ",".join(sample.labels.values()): round(sample.value, 9)
        for sample in metric.samples
        if sample.name.endswith(name)
    }


def test_steps_parts_and_causes_are_those_of_the_report() -> None:
    """In seconds; parts add up to the step, causes to what is exposed."""
    found = of(draw(PICTURE, rank=0), draw(PICTURE, rank=1))

    assert values(found["fsdpdoctor_step_seconds"]) == {"0": 0.016, "1": 0.016}
    budget = values(found["fsdpdoctor_budget_seconds"])
    assert budget["exposed_all_gather"] == 0.008
    assert round(sum(budget.values()), 9) == 0.016
    exposed = values(found["fsdpdoctor_exposed_seconds"])
    assert round(sum(exposed.values()), 9) == 0.008


def test_gauges_are_of_recent_steps_and_the_run_s_median_stays() -> None:
    """What an alert holds one against the other."""
    data = draw(PICTURE, steps=100)
    late = tuple(
        replace(s, end_ns=s.end_ns + 8 * MS) if at >= len(data.steps) - RECENT else s
        for at, s in enumerate(data.steps)
    )
    found = of(replace(data, steps=late))

    assert values(found["fsdpdoctor_step_seconds"]) == {"0": 0.024}
    assert values(found["fsdpdoctor_run_step_seconds"]) == {"0": 0.016}
    assert values(found["fsdpdoctor_steps"]) == {"0": data.steps[-1].step + 1}


def test_a_histogram_counts_every_recorded_collective() -> None:
    """Two gathers of 4 ms a step, all below 5 ms and none below 2.5."""
    data = draw(PICTURE)
    gathers = 2 * len(data.steps)
    found = of(data)["fsdpdoctor_all_gather_seconds"]

    buckets = {
        sample.labels["le"]: sample.value
        for sample in found.samples
        if sample.name.endswith("_bucket")
    }
    assert (buckets["0.0025"], buckets["0.005"]) == (0, gathers)
    assert buckets["+Inf"] == gathers
    assert values(found, "_sum") == {"0": round(gathers * 0.004, 9)}


def test_what_is_not_recorded_is_no_metric() -> None:
    """No reductions, no memory, no beats: none of them is 0."""
    found = of(draw(PICTURE))

    assert "fsdpdoctor_reduce_scatter_seconds" not in found
    assert "fsdpdoctor_allocated_bytes" not in found
    assert found["fsdpdoctor_last_progress_timestamp_seconds"].samples == []


def test_the_last_event_has_its_time() -> None:
    """Of the rank's clock, told as Unix time."""
    data = draw(PICTURE)
    beat = Beat(1, 0, 0, 0, 0, 0, 0, 0, time_ns=5_000_000_000)
    header = replace(data.header, unix_minus_clock_ns=1_700_000_000_000_000_000)
    found = of(replace(data, header=header, beats=(beat,)))

    name = "fsdpdoctor_last_progress_timestamp_seconds"
    assert values(found[name]) == {"0": 1_700_000_005.0}


@pytest.mark.parametrize("file", ["prometheus/rules.yml", "prometheus/grafana.json"])
def test_rules_and_dashboard_ask_for_what_there_is(file: str) -> None:
    """Every metric that they name is on the page that says what each means."""
    text = (DOCS / file).read_text()
    (json.loads if file.endswith("json") else yaml.safe_load)(text)
    named = set(re.findall(r"fsdpdoctor_[a-z_]+", text))
    known = set(re.findall(r"`(fsdpdoctor_\w+)`", (DOCS / "prometheus.md").read_text()))
    assert {re.sub(r"_bucket$", "", name) for name in named} <= known
    made = {re.sub(r"_total$", "", name) for name in known}
    assert set(of(draw(PICTURE))) <= made
