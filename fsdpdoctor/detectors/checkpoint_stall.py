"""FD405: saving or loading a checkpoint stops the training."""

from __future__ import annotations

from collections.abc import Iterator

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.host_events import pauses
from fsdpdoctor.finding import Advice, Confidence, Finding
from fsdpdoctor.quantities import count, duration, percent
from fsdpdoctor.schema import Evidence, Kind

# Of the run's time. `docs/detectors.md` D24 takes outlier steps; a share of the whole
# run says whether they matter. To be calibrated on the gallery.
WARNING_SHARE = 0.05


@detector("FD405", "checkpoint-stall", needs={Evidence.STEPS, Evidence.CHECKPOINT})
def checkpoint_stall(m: Measures) -> Iterator[Finding]:
    """Saving (or loading) a checkpoint takes much of the run's time.

    *Why it costs*: a full state dict gathers every parameter on every rank and
    writes from one; nothing trains meanwhile.

    *What to try*: sharded checkpoints (`torch.distributed.checkpoint`), saved with
    `async_save`; fewer saves.

    *When it is wrong*: in a short recording one save weighs more than in the job.
    Loads before the first step are not counted. The share is of the steps that were
    recorded.
    """
    total_ns = sum(int(rank.steps.duration_ns.sum()) for rank in m.ranks)
    if not total_ns:
        raise CannotTell("there is no step", Evidence.STEPS)
    saves = pauses(m, Kind.CHECKPOINT_SAVE, all_steps=True)
    if saves.total_ns / total_ns < WARNING_SHARE:
        return
    steps = sum(len(rank.steps) for rank in m.ranks)
    number = round(saves.per_step * steps / len(m.ranks))
    yield Finding(
        severity=level(saves.total_ns / total_ns, WARNING_SHARE),
        confidence=Confidence.MEDIUM,
        summary=f"{count(number, 'checkpoint save')} of {duration(saves.median_ns)} "
        f"take {percent(saves.total_ns / total_ns)} of the recorded time",
        ranks=saves.ranks,
        cost_ns_per_step=round(saves.total_ns / steps),
        evidence={
            "share_of_recorded_time": round(saves.total_ns / total_ns, 4),
            "longest_ns": saves.longest_ns,
            "ns_per_step_by_rank": dict(saves.by_rank),
        },
        advice=(
            Advice(
                text="Save shards, in the background; the copy takes host memory.",
                code="\n".join(
                    [
                        "import torch.distributed.checkpoint as dcp",
                        "from torch.distributed.checkpoint.state_dict import (",
                        "    get_model_state_dict,",
                        ")",
                        "",
                        "def save_behind(model, folder):",
                        '    """Returns a future: wait for it before the next save."""',
                        "    state = get_model_state_dict(model)",
                        "    return dcp.async_save(state, checkpoint_id=folder)",
                    ]
                ),
                memory_cost_bytes=0,
            ),
        ),
        places=saves.places,
    )
