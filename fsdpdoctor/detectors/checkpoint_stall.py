"""FD405: saving or loading a checkpoint stops the training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fsdpdoctor.analysis.measures import Measures
from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.detectors.base import CannotTell, detector, level
from fsdpdoctor.detectors.judged_steps import per_step
from fsdpdoctor.finding import Advice, Confidence, Finding, Location, Severity
from fsdpdoctor.intervals import total_ns, union
from fsdpdoctor.quantities import count, duration, percent
from fsdpdoctor.schema import Evidence, Kind, Within, distinct, median, one_of

# Of the run's time. `docs/detectors.md` D24 takes outlier steps; a share of the whole
# run says whether they matter. To be calibrated on the gallery.
WARNING_SHARE = 0.05


SAVE_BEHIND = """\
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

# Once, on every rank: a save in a thread must not communicate in training's group.
saving = dist.new_group(backend="gloo")

def save_behind(model, optimizer, folder):
    \"\"\"Returns a future: wait for it before the next save.\"\"\"
    weights, moments = get_state_dict(model, optimizer)
    state = {"model": weights, "optimizer": moments}
    return dcp.async_save(state, checkpoint_id=folder, process_group=saving)"""


@detector("FD405", "checkpoint-stall", needs={Evidence.STEPS, Evidence.CHECKPOINT})
def checkpoint_stall(m: Measures) -> Iterator[Finding]:
    """Saving (or loading) a checkpoint takes much of the run's time.

    *Why it costs*: a full state dict gathers every parameter on every rank and
    writes from one; nothing trains meanwhile.

    *What to try*: sharded checkpoints (`torch.distributed.checkpoint`), saved with
    `async_save`; fewer saves.

    *When it is wrong*: in a short recording one save weighs more than in the job.
    Loads before the first step are not counted. The share is of the steps that were
    recorded; the cost is of the judged ones, as the budget has it, and none is given
    where all steps with a save are so long that they are set aside. What is gathered
    or sent for a save is counted with it; exports without one are FD407's.
    """
    all_ns = sum(int(rank.steps.duration_ns.sum()) for rank in m.ranks)
    if not all_ns:
        raise CannotTell("there is no step", Evidence.STEPS)
    by_rank = {rank.rank: list(_checkpoints(rank)) for rank in m.ranks}
    taken_ns = [ns for saves in by_rank.values() for ns, _ in saves]
    share = sum(taken_ns) / all_ns
    if share < WARNING_SHARE:
        return
    aside = not any(
        rank.in_judged(rank.host.step[rank.host.kind == Kind.CHECKPOINT_SAVE]).any()
        for rank in m.ranks
    )
    number = max(len(saves) for saves in by_rank.values())
    places = [place for saves in by_rank.values() for _, place in saves]
    cost_ns = None if aside else _cost_ns(m)
    yield Finding(
        # What the device outlasts stops nobody.
        severity=Severity.INFO if cost_ns == 0 else level(share, WARNING_SHARE),
        confidence=Confidence.MEDIUM,
        summary=f"{count(number, 'checkpoint save')} of "
        f"{duration(round(median(taken_ns)))} {'takes' if number == 1 else 'take'} "
        f"{percent(share)} of the recorded time{ASIDE if aside else ''}",
        ranks=tuple(rank for rank, saves in by_rank.items() if saves),
        cost_ns_per_step=cost_ns,
        evidence={
            "share_of_recorded_time": round(share, 4),
            "longest_ns": max(taken_ns),
            "ns_per_step_by_rank": {
                str(rank.rank): round(
                    sum(ns for ns, _ in by_rank[rank.rank]) / len(rank.steps)
                )
                for rank in m.ranks
                if by_rank[rank.rank]
            },
        },
        advice=(
            Advice(
                text="Save shards, in the background; the copy takes host memory.",
                code=SAVE_BEHIND,
                memory_cost_bytes=0,
            ),
        ),
        places=tuple(sorted(places, key=lambda p: p.start_ns - p.end_ns)[:3]),
    )


ASIDE = ", in steps that are set aside: no mean step has one"


def _cost_ns(m: Measures) -> int:
    """As the budget has it: what of the judged steps a save takes, and the waits for
    what is gathered for one.
    """
    waits = 0
    for rank in m.ranks:
        others = rank.others.rows(rank.in_judged(rank.others.step))
        saves = rank.host.step[rank.host.kind == Kind.CHECKPOINT_SAVE]
        mine = (others.within == Within.CHECKPOINT) & one_of(others.step, saves)
        waits += int(others.exposed_ns[mine].sum())
    return m.budget_ns_per_step().get("checkpoint", 0) + per_step(m, waits)


def _checkpoints(rank: RankMeasures) -> Iterator[tuple[int, Location]]:
    """What each checkpoint takes and where it is: its parts between two steps are one.

    Model, optimizer and loader may be saved apart; what is gathered for them, around
    those saves, is a part of it, too.
    """
    host, others = rank.host, rank.others
    saves = host.rows(host.kind == Kind.CHECKPOINT_SAVE)
    exports = others.rows(others.within == Within.CHECKPOINT)
    for step in distinct(saves.step).tolist():
        mine, around = saves.rows(saves.step == step), exports.step == step
        spans = union(
            np.concatenate((mine.start_ns, exports.start_ns[around])),
            np.concatenate((mine.end_ns, exports.end_ns[around])),
        )
        if len(spans):
            start_ns, end_ns = int(spans[0, 0]), int(spans[-1, 1])
            yield (
                total_ns(spans),
                Location(rank=rank.rank, step=step, start_ns=start_ns, end_ns=end_ns),
            )
