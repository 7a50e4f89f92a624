"""What FSDP2 does is counted exactly, in every way of using it.

The expected numbers follow from FSDP2's policies, and were counted apart from
the recorder with `record_function` labels where the text says so.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from fsdpdoctor.run import RankData, open_run
from fsdpdoctor.schema import UNKNOWN, Flag, Kind, Phase, StepRecord
from tests.recorder.conftest import Recorded
from tests.rig.ranks import run_ranks

pytestmark = pytest.mark.ranks


class Counted(NamedTuple):
    """Collectives of one step, and passes of units."""

    forward: int  # all-gathers that the forward needed
    backward: int
    scatters: int
    all_reduces: int
    forwards: int  # of units
    backwards: int


def count(step: StepRecord, kind: Kind, phase: Phase | None = None) -> int:
    """The spans of a kind, in a phase if one is given."""
    chosen = step.spans.kind == kind
    if phase is not None:
        chosen &= step.spans.phase == phase
    return int(chosen.sum())


def counted(step: StepRecord) -> Counted:
    """What a step holds."""
    return Counted(
        forward=count(step, Kind.ALL_GATHER, Phase.FORWARD),
        backward=count(step, Kind.ALL_GATHER, Phase.BACKWARD),
        scatters=count(step, Kind.REDUCE_SCATTER),
        all_reduces=count(step, Kind.ALL_REDUCE),
        forwards=count(step, Kind.FORWARD),
        backwards=count(step, Kind.BACKWARD),
    )


def flags_of(step: StepRecord, kind: Kind) -> Counter[Flag]:
    """How often each combination of flags stands on spans of a kind."""
    return Counter(Flag(int(f)) for f in step.spans.flags[step.spans.kind == kind])


def units_of(data: RankData, step: StepRecord, kind: Kind) -> list[str]:
    """The units of the spans of a kind, in the order in which they ended."""
    units = step.spans.unit[step.spans.kind == kind]
    return [data.unit_name(int(u)) or "?" for u in units]


BLOCK = Counted(5, 4, 5, 0, 5, 5)
TWO_RANKS = {
    "block": BLOCK,
    "reshard_false": Counted(5, 0, 5, 0, 5, 5),
    "root_only": Counted(1, 0, 1, 0, 1, 1),
    "every_linear": Counted(9, 8, 9, 0, 9, 9),
    "accumulate": Counted(20, 16, 20, 0, 20, 20),
    "accumulate_sync_last": Counted(20, 16, 5, 0, 20, 20),
    "accumulate_keep": Counted(5, 16, 5, 0, 20, 20),
    "accumulate_keep_all": Counted(5, 0, 5, 0, 20, 20),
    # The root holds nothing: embedding, three blocks, and the grouped unit.
    "grouped": Counted(5, 5, 5, 0, 5, 5),
    "several_groups": Counted(9, 8, 9, 0, 9, 9),
    # Each block is a root, and a root is not resharded after its forward.
    "several_roots": Counted(4, 0, 4, 0, 4, 4),
    "tied": BLOCK,
    # Backward reaches layers.3 only, whose pre-backward prefetches layers.2.
    "frozen": Counted(5, 2, 1, 0, 5, 2),
    "checkpoint_non_reentrant": BLOCK,
    "checkpoint_reentrant": Counted(5, 4, 5, 0, 9, 5),
    "nested_in_checkpoint": Counted(9, 8, 9, 0, 9, 9),
    # Half of the backward's gathers are the recomputed forwards' own.
    "nested_in_reentrant": Counted(9, 8, 9, 0, 17, 9),
    "manual_unshard": BLOCK,
    "asynchronous_prefetch": BLOCK,
    "skipping_prefetch": BLOCK,
    "useless_prefetch": Counted(6, 3, 5, 0, 5, 5),
    "offload": BLOCK,
    "two_forwards": Counted(9, 8, 5, 0, 10, 9),
    "two_optimizers": BLOCK,
    "optimizer_in_backward": BLOCK,
    "stale_optimizer": BLOCK,
    # The embedding and the head are outside; the blocks' own root holds nothing.
    "unmanaged": Counted(4, 4, 4, 0, 4, 4),
    # One rank per shard: nothing to gather or scatter, FSDP2 skips the calls.
    "replicas_only": Counted(0, 0, 0, 5, 5, 5),
    "one_replica": Counted(5, 4, 5, 5, 5, 5),
    "mixed_precision": BLOCK,
    "deleted": BLOCK,
    "ddp": Counted(0, 0, 0, 0, 0, 0),
    "fsdp1": Counted(0, 0, 0, 0, 0, 0),
    "plain": Counted(0, 0, 0, 0, 0, 0),
}


@pytest.mark.parametrize("scenario", TWO_RANKS)
def test_counts_what_two_ranks_do(two: Recorded, scenario: str) -> None:
    """Every step of every rank has exactly the collectives of the policy."""
    for rank in (0, 1):
        data = two.rank(scenario, rank)
        steps = [step for step in data.steps if step.complete]
        assert len(steps) >= 2
        assert [counted(s) for s in steps] == [TWO_RANKS[scenario]] * len(steps)
        assert data.header.ended == "done"
        assert data.header.warnings == ()


FOUR_RANKS = {
    "hybrid": Counted(5, 4, 5, 5, 5, 5),
    "sub_mesh": BLOCK,
    "reshard_int": BLOCK,
}


@pytest.mark.parametrize("scenario", FOUR_RANKS)
def test_counts_what_four_ranks_do(four: Recorded, scenario: str) -> None:
    """The same over two-dimensional meshes and smaller post-forward groups."""
    for rank in range(4):
        steps = four.rank(scenario, rank).steps
        assert [counted(s) for s in steps] == [FOUR_RANKS[scenario]] * 3


@pytest.mark.parametrize("scenario", ["block", "accumulate"])
def test_one_rank_has_passes_and_no_collectives(one: Recorded, scenario: str) -> None:
    """FSDP2 skips the collectives of one rank; units and windows are still seen."""
    steps = one.rank(scenario).steps
    passes = 5 if scenario == "block" else 20

    assert [counted(s) for s in steps] == [Counted(0, 0, 0, 0, passes, passes)] * len(
        steps
    )
    assert [count(s, Kind.UNSHARDED) for s in steps] == [passes * 9 // 5] * len(steps)


SEQUENCES = [name for name in TWO_RANKS if TWO_RANKS[name].forward]


@pytest.mark.parametrize("scenario", SEQUENCES)
def test_an_unshard_s_spans_belong_together(two: Recorded, scenario: str) -> None:
    """Each gather has one copy-in, wait and host call; a used one is copied out once,
    opens one window, and comes in this order.
    """
    for step in two.rank(scenario).steps:
        spans = step.spans
        by_op = {
            kind: dict(
                zip(
                    spans.op[spans.kind == kind].tolist(),
                    np.flatnonzero(spans.kind == kind).tolist(),
                    strict=True,
                )
            )
            for kind in (
                Kind.UNSHARD,
                Kind.COPY_IN,
                Kind.ALL_GATHER,
                Kind.ALL_GATHER_WAIT,
                Kind.COPY_OUT,
            )
        }
        gathers = by_op[Kind.ALL_GATHER]
        assert by_op[Kind.COPY_IN].keys() == gathers.keys()
        assert by_op[Kind.UNSHARD].keys() == gathers.keys()
        assert by_op[Kind.ALL_GATHER_WAIT].keys() == gathers.keys()
        unused = {
            op for op, row in gathers.items() if spans.flags[row] & Flag.NEVER_USED
        }
        assert by_op[Kind.COPY_OUT].keys() == gathers.keys() - unused
        for op, row in gathers.items():
            copied_in = by_op[Kind.COPY_IN][op]
            assert spans.end_ns[copied_in] <= spans.start_ns[row]
            assert spans.issued_ns[row] <= spans.start_ns[row] <= spans.end_ns[row]
            if op in by_op[Kind.COPY_OUT]:
                copied_out = by_op[Kind.COPY_OUT][op]
                waited = by_op[Kind.ALL_GATHER_WAIT][op]
                assert spans.end_ns[row] <= spans.start_ns[copied_out]
                assert spans.end_ns[waited] <= spans.start_ns[copied_out]
                assert spans.unit[copied_out] == spans.unit[row]


@pytest.mark.parametrize("scenario", SEQUENCES)
def test_ranks_number_their_collectives_alike(two: Recorded, scenario: str) -> None:
    """The same group, number, kind, unit and size on both ranks, in every step."""

    def sequence(rank: int) -> list[list[tuple[int, ...]]]:
        steps = two.rank(scenario, rank).steps
        kinds = (Kind.ALL_GATHER, Kind.REDUCE_SCATTER, Kind.ALL_REDUCE)
        return [
            sorted(
                zip(
                    *(
                        column[np.isin(step.spans.kind, kinds)].tolist()
                        for column in (
                            step.spans.group,
                            step.spans.seq,
                            step.spans.kind,
                            step.spans.unit,
                            step.spans.bytes,
                        )
                    ),
                    strict=True,
                )
            )
            for step in steps
        ]

    assert sequence(0) == sequence(1)


def test_flags_say_who_issued_a_gather(two: Recorded) -> None:
    """The first of the step, plain ones, and those that backward prefetched."""
    step = two.rank("block").steps[1]

    assert flags_of(step, Kind.ALL_GATHER) == {
        Flag.FIRST | Flag.BLOCKING: 1,
        Flag.BLOCKING: 4,
        Flag.BLOCKING | Flag.BACKWARD_PREFETCH: 4,
    }


def test_a_prefetch_knows_its_target_and_its_issuer(two: Recorded) -> None:
    """Each block's gather is issued by the block before it, with a handle."""
    data = two.rank("asynchronous_prefetch")
    spans = data.steps[1].spans
    rows = (spans.kind == Kind.ALL_GATHER) & (spans.flags & Flag.FORWARD_PREFETCH != 0)
    pairs = [
        (data.unit_name(int(unit)), data.unit_name(int(by)))
        for unit, by in zip(spans.unit[rows], spans.by_unit[rows], strict=True)
    ]
    layer = {unit.fqn: unit for unit in data.header.units}

    assert sorted(pairs) == [
        ("layers.1", "layers.0"),
        ("layers.2", "layers.1"),
        ("layers.3", "layers.2"),
    ]
    assert flags_of(data.steps[1], Kind.ALL_GATHER) == {
        Flag.FIRST | Flag.ASYNC_OP: 1,
        Flag.ASYNC_OP: 1,
        Flag.ASYNC_OP | Flag.FORWARD_PREFETCH: 3,
        Flag.ASYNC_OP | Flag.BACKWARD_PREFETCH: 4,
    }
    assert layer["layers.0"].forward_prefetch == (2,)
    assert layer["layers.1"].backward_prefetch == (1,)
    assert layer["layers.0"].unshard_async_op is True


def test_recomputation_is_backward_s(two: Recorded) -> None:
    """Reentrant checkpointing runs the blocks' forwards again, and says so."""
    data = two.rank("checkpoint_reentrant")
    step = data.steps[1]
    units = {unit.fqn: unit.checkpointed for unit in data.header.units}

    assert flags_of(step, Kind.FORWARD) == {Flag.NONE: 5, Flag.RECOMPUTE: 4}
    assert count(step, Kind.FORWARD, Phase.BACKWARD) == 4
    assert units == {"<root>": False} | {f"layers.{i}": True for i in range(4)}
    assert data.header.model is not None
    assert data.header.model.checkpoint == "reentrant"


def test_a_forward_without_gradients_is_no_micro_batch(two: Recorded) -> None:
    """Evaluation is flagged, gathers what it needs, and belongs to the next step."""
    steps = two.rank("evaluate").steps

    assert [step.micro_batches for step in steps] == [1, 1, 1, UNKNOWN]
    assert [count(step, Kind.MICRO_BATCH) for step in steps] == [1, 1, 1, 0]
    # The root stays unsharded after an evaluation, so training gathers the blocks.
    assert flags_of(steps[1], Kind.ALL_GATHER) == {
        Flag.FIRST | Flag.NO_GRAD | Flag.BLOCKING: 1,
        Flag.NO_GRAD | Flag.BLOCKING: 4,
        Flag.BLOCKING: 4,
        Flag.BLOCKING | Flag.BACKWARD_PREFETCH: 4,
    }
    assert steps[3].complete is False


def test_generation_without_an_optimizer_is_one_open_step(two: Recorded) -> None:
    """Five forwards of the root and its blocks: 21 gathers, for the root stays."""
    (step,) = two.rank("generate").steps

    assert counted(step) == Counted(21, 0, 0, 0, 25, 0)
    assert (step.complete, step.micro_batches) == (False, UNKNOWN)


def test_a_forward_method_is_a_forward(two: Recorded) -> None:
    """Methods that the user registered unshard like `forward`; one more root forward
    around three generated tokens.
    """
    step = two.rank("forward_method").steps[0]

    assert count(step, Kind.ALL_GATHER, Phase.FORWARD) == 18
    assert step.micro_batches == 1


def test_a_gather_by_hand_counts_for_the_pass_that_uses_it(two: Recorded) -> None:
    """It is issued before the micro-batch, by no unit, and belongs to its forward."""
    data = two.rank("manual_unshard")
    spans = data.steps[1].spans
    row = np.flatnonzero(
        (spans.kind == Kind.ALL_GATHER) & (spans.flags & Flag.MANUAL != 0)
    )

    assert spans.unit[row].tolist() == [0]
    assert spans.by_unit[row].tolist() == [UNKNOWN]
    assert spans.phase[row].tolist() == [Phase.FORWARD]
    assert spans.micro_batch[row].tolist() == [0]


def test_an_unused_gather_is_told_from_a_used_one(two: Recorded) -> None:
    """Backward prefetches layers.2, which has nothing trainable: nobody waits."""
    data = two.rank("frozen")
    spans = data.steps[1].spans
    row = (spans.kind == Kind.ALL_GATHER) & (spans.flags & Flag.NEVER_USED != 0)

    assert [data.unit_name(int(u)) for u in spans.unit[row]] == ["layers.2"]


def test_an_exception_ends_what_was_open(two: Recorded) -> None:
    """The failed pass is an aborted micro-batch; the next one is whole."""
    data = two.rank("exception")
    step = data.steps[1]
    aborted = [
        data.unit_name(int(unit))
        for unit in step.spans.unit[
            (step.spans.kind == Kind.FORWARD) & (step.spans.flags & Flag.ABORTED != 0)
        ]
    ]

    assert aborted == ["layers.2", "<root>"]
    assert flags_of(step, Kind.MICRO_BATCH) == {Flag.ABORTED: 1, Flag.NONE: 1}
    assert step.micro_batches == 2
    assert counted(data.steps[2]) == BLOCK
    assert data.steps[2].memory.unsharded_bytes[-1] == 0


def test_parameters_are_live_in_windows_only(two: Recorded) -> None:
    """Live bytes are what the open windows hold, and nothing is left at the end."""
    for step in two.rank("block").steps:
        spans = step.spans
        windows = spans.rows(spans.kind == Kind.UNSHARDED)
        samples = step.memory.rows(step.memory.unit != UNKNOWN)
        expected = [
            int(windows.bytes[(windows.start_ns <= at) & (at < windows.end_ns)].sum())
            for at in samples.time_ns
        ]
        assert samples.unsharded_bytes.tolist() == expected
        assert samples.unsharded_bytes[-1] == 0
        assert samples.unsharded_bytes.max() > 0


def test_resharding_to_a_smaller_group_gathers_from_it(four: Recorded) -> None:
    """Forward gathers over four ranks, backward over two, half the copies each."""
    data = four.rank("reshard_int", 3)
    spans = data.steps[1].spans
    ranks = {
        phase: {
            data.header.groups[int(group)].ranks
            for group in spans.group[
                (spans.kind == Kind.ALL_GATHER)
                & (spans.phase == phase)
                & (spans.unit != 0)
            ]
        }
        for phase in (Phase.FORWARD, Phase.BACKWARD)
    }

    assert ranks == {Phase.FORWARD: {(0, 1, 2, 3)}, Phase.BACKWARD: {(2, 3)}}
    assert {u.reshard_after_forward for u in data.header.units[1:]} == {2}
    assert data.header.groups[data.header.units[1].post_forward_group].role == (
        "post_forward"
    )


AT_ONCE = """
import os, sys, threading, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param_group as groups

dist.init_process_group("gloo")
torch.manual_seed(1)

def built():
    model = torch.nn.Linear(4, 1)
    fully_shard(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

def train(model, optimizer):
    loss = model(torch.ones(2, 4)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item().hex())

losses, first, second = [], built(), built()
gather = groups.foreach_all_gather

def gather_amid_another(*args, **kwargs):
    if step == 3 and not others:
        others.append(threading.Thread(target=train, args=second))
        others[0].start()
        others[0].join()
    return gather(*args, **kwargs)

groups.foreach_all_gather = gather_amid_another
step, others = 0, []
if sys.argv[1:]:
    import fsdpdoctor
    with fsdpdoctor.record(sys.argv[1]):
        for step in range(6):
            train(*first)
else:
    for step in range(6):
        train(*first)
print(losses)
dist.destroy_process_group()
"""


def test_threads_that_train_at_once_are_not_told_apart(tmp_path: Path) -> None:
    """The second one gathers in the midst of the first one's gather. Both train on; the
    record ends with its last whole step, and says why.
    """
    script = tmp_path / "script.py"
    script.write_text(AT_ONCE)
    plain = run_ranks(2, str(script))
    ours = run_ranks(2, str(script), str(tmp_path / "run"))
    ends = [rank.header.ended for rank in open_run(tmp_path / "run").load()]
    steps = [len(rank.steps) for rank in open_run(tmp_path / "run").load()]

    assert [rank.stdout.count("0x") for rank in plain] == [7, 7]
    assert [rank.stdout for rank in ours] == [rank.stdout for rank in plain]
    assert steps == [3, 3]
    assert [end.partition(":")[0] for end in ends] == ["detached", "detached"]
    assert all("two threads of this process train at once" in end for end in ends)
