"""Which test file is of which module: makes tests/README.md.

    python -m tests.mirror > tests/README.md

A module's test lies in the folder of the same name and is named for it; that of a
package's `__init__` is named for its folder. What has no file of its own stands in
`COVERED_BY`, under the file that tests it.
"""

from __future__ import annotations

import ast
import functools
import sys
from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
README = TESTS / "README.md"

PACKAGES = {
    ROOT / "fsdpdoctor": TESTS,
    ROOT / "dashboard" / "fsdpdoctor_dashboard": TESTS / "dashboard",
}
"""Packages, and where the tests of each lie."""


def _in(folder: str, modules: str) -> tuple[str, ...]:
    """Modules of one folder."""
    return tuple(f"{folder}/{name}.py" for name in modules.split())


COVERED_BY: dict[str, tuple[str, ...]] = {
    "report/test_row_table.py": ("storage/arrow_columns.py",),
    "cli/processes/test_rank_in_place.py": ("recorder/autotune/ranking.py",),
    "cli/processes/test_command_process.py": ("cli/processes/terminal.py",),
    "recorder/autotune/test_autotuner.py": _in(
        "recorder/autotune", "decisions passes start"
    ),
    "analysis/test_rank_shelf.py": ("analysis/by_rank.py",),
    "recorder/storage/test_run_folder.py": ("storage/runs_place.py",),
    "detectors/test_padding_alignment.py": ("detectors/before_a_gpu.py",),
    "detectors/test_frozen_params.py": (
        "detectors/frozen_backward.py",
        "detectors/frozen_wide.py",
    ),
    "exporters/test_redacted_run.py": (
        "cli/sharing/bundle.py",
        "cli/sharing/names.py",
    ),
    "report/comparison/test_runs.py": (
        "report/comparison/settings.py",
        "report/comparison/times.py",
        "report/comparison/difference.py",
    ),
    "integrations/test_hta.py": _in("integrations", "hta_json hta_tables hta_words"),
    "redact/test_redact.py": ("redact/secret_names.py",),
    "detectors/test_other_collectives.py": (
        "analysis/named_gaps.py",
        "analysis/other_calls.py",
        "detectors/unexplained.py",
        "report/other_collectives.py",
    ),
    "report/test_memory.py": ("renderers/reading/memory_words.py",),
    "recorder/memory/test_memory_step.py": (
        "recorder/memory/storage_mode.py",
        "recorder/memory/unit_places.py",
        "schema/memory.py",
        "schema/start.py",
    ),
    "recorder/host/test_call_stack.py": ("recorder/host/source_paths.py",),
    "recorder/fsdp2/test_signals.py": (
        "cli/env.py",
        "recorder/abilities.py",
        "recorder/fsdp2/signatures.py",
    ),
    "recorder/host/test_collective_calls.py": (
        "recorder/host/collective_operators.py",
    ),
    "detectors/test_run_ended.py": (
        "detectors/endings.py",
        *_in("hang", "blame error_meaning standing"),
    ),
    "detectors/test_straggler_rank.py": ("detectors/late_ranks.py",),
    "detectors/test_spmd_divergence.py": _in("hang", "first_divergence given_sizes"),
    "recorder/steps/test_steps.py": (
        "recorder/steps/root_passes.py",
        "recorder/steps/step_bounds.py",
    ),
    "recorder/host/test_stall_watch.py": (
        "rank_end.py",
        "rank_end_files.py",
        "recorder/host/position.py",
    ),
    "analysis/test_measures.py": (
        "analysis/rank_measures.py",
        "analysis/timeline.py",
        "analysis/unit_times.py",
    ),
    "changes/test_frameworks.py": _in(
        "changes", "accelerate lightning snippet torchtitan"
    ),
    "changes/test_code.py": (
        "changes/sharding_code.py",
        "simulate/plans/plan_code.py",
        "simulate/plans/settings.py",
    ),
    "cli/test_cli.py": (
        "__main__.py",
        "cli/analyze.py",
        "cli/explain.py",
        "cli/import_.py",
        "cli/output.py",
        "cli/report.py",
        "errors.py",
    ),
    "memory_snapshot/test_purpose.py": ("memory_snapshot/call_site.py",),
    "memory_snapshot/test_diagnose_snapshot.py": _in(
        "memory_snapshot", "attribution columns compare_ranks snapshot snapshot_report"
    ),
    "renderers/snapshots/test_snapshot_pages.py": _in(
        "renderers/snapshots", "rank_words snapshot_tables snapshot_words"
    ),
    "cli/test_compare.py": ("renderers/comparison.py",),
    "cli/test_hang.py": ("hang/match_units.py", "renderers/hang.py"),
    "cli/test_rehearse.py": ("cli/demo.py", "demo/train.py"),
    "cli/test_whatif.py": ("renderers/whatif.py",),
    "importers/reader/test_event_index.py": ("importers/reader/build_index.py",),
    "dashboard/data/test_opened_lanes.py": ("dashboard/data/trace_events.py",),
    "dashboard/data/test_store.py": ("dashboard/data/rank_series.py",),
    "dashboard/data/test_tiles.py": (
        "dashboard/data/pieces.py",
        "dashboard/data/series.py",
        "dashboard/data/slices.py",
        "dashboard/data/tile_cache.py",
    ),
    "dashboard/test_admission.py": (
        "dashboard/server/query_params.py",
        "dashboard/server/security.py",
    ),
    "dashboard/test_app.py": (
        "cli/view.py",
        "dashboard/data/run_registry.py",
        "dashboard/pages/components.py",
        "dashboard/pages/timeline.py",
        "dashboard/pages/units.py",
        "dashboard/pages/whatif_callbacks.py",
        "dashboard/pages/whatif_model.py",
        "dashboard/serve.py",
        "dashboard/server/api.py",
        "dashboard/server/download_routes.py",
        "dashboard/server/responses.py",
        "dashboard/server/tile_middleware.py",
        "dashboard/timeline/component.py",
    ),
    "dashboard/pages/test_many_ranks.py": _in("dashboard/pages", "overview ranks"),
    "dashboard/server/test_share_card.py": ("cli/sharing/share.py",),
    "dashboard/pages/requests/test_made_pages.py": (
        "dashboard/pages/requests/ahead.py",
    ),
    "dashboard/test_callbacks.py": ("dashboard/pages/requests/page_request.py",),
    "dashboard/server/test_viewer_page.py": ("cli/sharing/viewer.py",),
    "dashboard/pages/test_verdict_box.py": ("renderers/reading/outlook.py",),
    "dashboard/pages/test_findings.py": ("renderers/reading/finding_order.py",),
    "dashboard/pages/pictures/test_figures.py": (
        "dashboard/pages/pictures/memory_figures.py",
    ),
    "dashboard/pages/pictures/test_unit_bars.py": (
        "dashboard/pages/pictures/unit_map.py",
    ),
    "dashboard/timeline/test_scripts.py": ("dashboard/timeline/settings.py",),
    "dashboard/test_live.py": (
        "cli/processes/beside.py",
        "cli/processes/live.py",
        "dashboard/data/in_progress.py",
        "recorder/launch/start_beside.py",
    ),
    "detectors/test_advice_runs.py": ("detectors/remedies.py",),
    "detectors/test_detectors.py": ("detectors/base.py", "finding.py"),
    "detectors/test_host_pause.py": ("detectors/host_events.py", "schema/hooks.py"),
    "detectors/test_exposed_all_gather.py": ("detectors/judged_stalls.py",),
    "detectors/test_prefetch_misconfig.py": ("detectors/unit_order.py",),
    "detectors/test_look_alikes.py": ("testing.py",),
    "detectors/test_reshard_policy.py": _in(
        "detectors", "gather_counts passes_without_gradients"
    ),
    "exporters/test_kineto.py": (
        "exporters/device_rows.py",
        "exporters/hooks.py",
        "exporters/kineto_events.py",
    ),
    "exporters/test_perfetto.py": ("exporters/perfetto_run.py",),
    "hang/test_diagnose.py": ("hang/flight_recorder.py",),
    "importers/fsdp2/test_fsdp2.py": (
        "importers/fsdp2/label_tree.py",
        "importers/fsdp2/labels.py",
        "importers/fsdp2/nesting.py",
        "importers/fsdp2/operations.py",
        "importers/fsdp2/passes.py",
        "importers/kineto/host_collectives.py",
        "importers/kineto/host_spans.py",
    ),
    "importers/kineto/test_communication.py": (
        "importers/kineto/kernels.py",
        "importers/known_libraries.py",
        "importers/libraries.py",
        "importers/kineto/process_groups.py",
        "schema/dtypes.py",
    ),
    "importers/kineto/test_device_spans.py": (
        "importers/kineto/launch_windows.py",
        "importers/kineto/launches.py",
        "importers/kineto/pass_spans.py",
        "importers/kineto/source.py",
    ),
    "importers/kineto/test_steps.py": ("importers/kineto/partial_steps.py",),
    "importers/reader/test_decoders.py": (
        "importers/reader/decode_c.py",
        "importers/reader/decode_json.py",
        "importers/reader/read_trace.py",
        "importers/reader/trace_file.py",
    ),
    "importers/reader/test_memory_events.py": ("importers/kineto/memory_samples.py",),
    "importers/test_damage.py": (
        "importers/file_kind.py",
        "importers/reader/decompress.py",
        "importers/reader/repair.py",
    ),
    "importers/test_misread.py": (
        "analysis/two_jobs.py",
        "importers/kineto/unknown_kernels.py",
    ),
    "importers/test_nsys.py": ("importers/nsys_ranks.py",),
    "importers/test_rank_files.py": (
        "importers/__init__.py",
        "importers/reader/trace_cache.py",
    ),
    "rehearsal/device/pricing/test_matmul.py": (
        "rehearsal/device/pricing/attention.py",
        "rehearsal/device/pricing/memory.py",
    ),
    "rehearsal/device/test_streams.py": ("rehearsal/device/host_clock.py",),
    "rehearsal/device/test_virtual_session.py": (
        "rehearsal/device/cuda/cuda_names.py",
        "rehearsal/device/dispatch_mode.py",
        "rehearsal/device/host_costs.py",
        "rehearsal/device/memory/storages.py",
        "rehearsal/device/operators.py",
        "rehearsal/device/placement.py",
        "rehearsal/device/virtual_device.py",
    ),
    "planning/test_memory_plan.py": (
        "cli/plan.py",
        "planning/meta_model.py",
        "planning/model_shape.py",
        "renderers/memory_plan.py",
    ),
    "recorder/tape/test_worlds.py": ("recorder/tape/facts.py",),
    "recorder/test_patching.py": ("recorder/brackets.py",),
    "recorder/changes/test_apply_plan.py": (
        "plan_file.py",
        "recorder/changes/fully_shard_override.py",
    ),
    "recorder/fsdp2/test_fsdp2.py": (
        "recorder/fsdp2/all_gather_hooks.py",
        "recorder/fsdp2/collective_hooks.py",
        "recorder/flag_bits.py",
        "recorder/fsdp2/hook_context.py",
        "recorder/fsdp2/internals.py",
        "recorder/fsdp2/param_group_hooks.py",
        "recorder/fsdp2/process_groups.py",
        "recorder/fsdp2/reduce_hooks.py",
        "recorder/fsdp2/state_hooks.py",
        "recorder/fsdp2/unit_registry.py",
        "recorder/fsdp2/unit_state.py",
        "recorder/storage/recording.py",
    ),
    "recorder/fsdp2/test_unit_specs.py": (
        "recorder/host/model_spec.py",
        "recorder/host/plain_roots.py",
    ),
    "recorder/launch/test_profiler_capture.py": (
        "recorder/fsdp2/step_watch.py",
        "recorder/launch/profiler_schedule.py",
    ),
    "recorder/launch/test_run_script.py": ("__init__.py",),
    "recorder/test_kinds.py": _in("recorder", "lanes phases"),
    "recorder/test_session.py": (
        "recorder/fsdp2/installed_hooks.py",
        "recorder/steps/pending_step.py",
        "recorder/rank_header.py",
        "recorder/recording_config.py",
    ),
    "rehearsal/test_modelled_group.py": (
        "rehearsal/collective_values.py",
        "rehearsal/modelled_work.py",
    ),
    "renderers/test_renderers.py": (
        "renderers/formatting.py",
        "renderers/html.py",
        "renderers/html_style.py",
        "renderers/json.py",
        "renderers/markdown.py",
        "renderers/report_view.py",
        "renderers/tables.py",
        "renderers/text.py",
    ),
    "report/test_report.py": (
        "report/model_rows.py",
        "report/models.py",
        "report/collectives_ranks.py",
        "report/diagnosis.py",
        "report/units.py",
        "report/value.py",
    ),
    "report/test_report_health.py": ("report/facts_health.py",),
    "report/test_verdict.py": ("report/costs.py",),
    "simulate/calibration/test_calibrate.py": (
        "simulate/calibration/comm_cost.py",
        "simulate/calibration/host_costs.py",
        "simulate/calibration/measured_steps.py",
        "simulate/calibration/module_tree.py",
        "simulate/calibration/partition.py",
        "simulate/calibration/unit_settings.py",
    ),
    "simulate/engine/test_simulate.py": (
        "simulate/engine/opcodes.py",
        "simulate/engine/run_constraints.py",
        "simulate/engine/step.py",
        "simulate/engine/synthetic_record.py",
    ),
    "simulate/plans/test_plan.py": (
        "changes/plan.py",
        "simulate/plans/change_step.py",
        "simulate/plans/regroup.py",
        "simulate/plans/search.py",
    ),
    "test_robustness.py": ("importers/reader/op_filter.py",),
    "test_run.py": (
        "untrusted/rank_stream.py",
        *_in(
            "schema",
            "absent files headers kinds step_record string_table tables step_batch "
            "units",
        ),
    ),
    "rehearsal/device/test_host_values.py": ("rehearsal/device/known_values.py",),
    "renderers/test_sweep.py": ("renderers/sweep_page.py",),
    "test_tune.py": ("cli/processes/trial_runs.py",),
    "test_wheel.py": ("version.py",),
}
"""By the file that tests them: modules without one. The dashboard's: `dashboard/`."""

HEAD = """\
# Tests

    pytest                 # the fast ones, single process
    pytest -m slow         # minutes long, or needs an optional tool

A module's test has its place and name: `fsdpdoctor/storage/spill.py` is tested by
`storage/test_spill.py`, `dashboard/fsdpdoctor_dashboard/data/tiles.py` by
`dashboard/data/test_tiles.py`. Beside the tests lie

- `models.py`: the networks that are trained, some of whose compute is sleeps of exact
  length;
- `rig/`: jobs to diagnose. `fake.py` is one process that trains as rank 0 of N on a
  modelled wire, and the truth of it; `ranks.py` starts real processes over gloo;
  `scripts/` are a user's training scripts, healthy or with one fault;
- `frameworks/`: scripts as frameworks and their users write them, and the frameworks
  that are installed, plain and recorded; `pytest -m frameworks`, which writes a page
  beside the benchmarks;
- `reports/`: scripts of public reports' kinds, with what a right answer has (slow);
- `zoo/`: the catalogue of public reports as jobs with a fault and their cured twins; a
  fast group, the others slow, all of them by `python -m tests.benchmarks.zoo`;
- `gallery/`: makes the recordings in `traces/`;
- `benchmarks/`: measures; nothing there is a test.

This page is made by `python -m tests.mirror > tests/README.md`, and a test fails where
it is stale.
"""


@functools.cache
def modules() -> dict[str, Path]:
    """Every module that holds code, by the name that it has in `COVERED_BY`."""
    found = {}
    for package, folder in PACKAGES.items():
        for path in sorted(package.rglob("*.py")):
            if path.name != "__init__.py" or _defines(path):
                place = folder / path.relative_to(package)
                found[place.relative_to(TESTS).as_posix()] = path
    return found


def _defines(path: Path) -> bool:
    """Whether an `__init__` is more than names from elsewhere."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return any(isinstance(node, kinds) for node in ast.parse(path.read_text()).body)


def own_test(module: str) -> str:
    """Where a module's own test would lie, below tests/."""
    path = Path(module)
    name = path.parent.name if path.stem == "__init__" else path.stem.strip("_")
    return (path.parent / f"test_{name or 'fsdpdoctor'}.py").as_posix()


def tests_of() -> dict[str, str | None]:
    """The test of each module; None where there is none."""
    elsewhere = {module: test for test, each in COVERED_BY.items() for module in each}
    return {
        module: own if (TESTS / own).is_file() else elsewhere.get(module)
        for module in modules()
        for own in (own_test(module),)
    }


def chains() -> dict[str, str]:
    """Test files that are named for no module, and what each says it tests."""
    named = {own_test(module) for module in modules()}
    found = {path.relative_to(TESTS).as_posix(): path for path in files()}
    return {
        name: _first_sentence(path) for name, path in found.items() if name not in named
    }


def files() -> list[Path]:
    """All files of tests."""
    return sorted(TESTS.rglob("test_*.py"))


def _first_sentence(path: Path) -> str:
    said = ast.get_docstring(ast.parse(path.read_text())) or ""
    return " ".join(said.split("\n\n")[0].split())


def page() -> str:
    """tests/README.md."""
    rows = [
        f"| `{modules()[module].relative_to(ROOT).as_posix()}` | `{test or '-'}` |"
        for module, test in tests_of().items()
    ]
    more = [f"| `{name}` | {said} |" for name, said in chains().items()]
    first = "## Modules and their tests\n\n| module | test |\n| --- | --- |"
    then = "\n## Tests of more than one module\n\n| test | what |\n| --- | --- |"
    return "\n".join([HEAD, first, *rows, then, *more, ""])


if __name__ == "__main__":
    sys.stdout.write(page())
