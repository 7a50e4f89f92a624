"""All-gathers of each judged step, counted against what the policy asks for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fsdpdoctor.analysis.rank_measures import RankMeasures
from fsdpdoctor.analysis.unit_times import UnitTimes
from fsdpdoctor.detectors.judged_steps import NO_ROWS, PHASES, rows_by_step
from fsdpdoctor.schema import UNKNOWN, Flag, Kind, Phase

UnitPhase = tuple[int, int]
"""A unit's index and the phase that needed its gather."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGathers:
    """One step of one rank. Rows are those of the rank's collectives."""

    rank: RankMeasures
    step: int
    rows: dict[UnitPhase, list[int]]  # ascending by start
    expected: dict[UnitPhase, int]  # UNKNOWN: the policy or the calls are not known
    unused: Counter[int]  # by unit: windows, or gathers, that nothing used
    times: UnitTimes  # of this step
    micro_batches: int  # UNKNOWN: not counted

    @property
    def units(self) -> list[int]:
        return sorted({unit for unit, _ in (*self.rows, *self.expected)})

    def counted(self, unit: int, phase: int) -> int:
        return len(self.rows.get((unit, phase), []))

    def wanted(self, unit: int, phase: int) -> int:
        """0 in a phase in which the unit did nothing."""
        return self.expected.get((unit, phase), 0)

    def duplicates(self, unit: int) -> dict[int, list[int]]:
        """By phase, the rows of a unit that nothing asked for.

        A surplus in one phase that another phase lacks is an early gather, not a
        duplicate; and what nothing used belongs to other detectors.
        """
        if any(self.wanted(unit, phase) == UNKNOWN for phase in PHASES):
            return {}
        over = {p: self.counted(unit, p) - self.wanted(unit, p) for p in PHASES}
        left = sum(over.values()) - self.unused[unit]
        result: dict[int, list[int]] = {}
        for phase in reversed(PHASES):
            take = max(min(over[phase], left), 0)
            left -= take
            if take:
                result[phase] = self._repeats(self.rows[unit, phase])[:take]
        return result

    def _repeats(self, rows: list[int]) -> list[int]:
        """Rows by how many of the same micro-batch came before, the most in front:
        a micro-batch's first gather is not the duplicate.
        """
        before: Counter[int] = Counter()
        order: list[tuple[int, int]] = []
        for row in rows:
            micro_batch = int(self.rank.collectives.micro_batch[row])
            order.append((-before[micro_batch], row))
            before[micro_batch] += 1
        return [row for _, row in sorted(order)]


def step_gathers(rank: RankMeasures) -> Iterator[StepGathers]:
    """Each judged step of a rank. Evaluation is left out; a gather for recomputation
    is needed by backward, whatever state it is issued in.
    """
    table, times, windows = rank.collectives, rank.unit_times, rank.windows
    gathers = (table.kind == Kind.ALL_GATHER) & (table.flags & Flag.NO_GRAD == 0)
    again = table.flags & Flag.RECOMPUTE != 0
    phase = np.where(again, np.int8(Phase.BACKWARD), table.phase)
    in_backward = Flag.NEVER_USED | Flag.BACKWARD_PREFETCH
    unused = windows.flags & Flag.NEVER_USED != 0
    of_table, of_times = rows_by_step(table.step), rows_by_step(times.step)
    of_windows = rows_by_step(windows.step)
    batches = rank.steps.micro_batches[rank.judged]
    for step, count in zip(rank.judged_steps.tolist(), batches.tolist(), strict=True):
        rows: dict[UnitPhase, list[int]] = defaultdict(list)
        here = of_table.get(step, NO_ROWS)
        for row in here[gathers[here]].tolist():
            if table.unit[row] != UNKNOWN:
                rows[int(table.unit[row]), int(phase[row])].append(row)
        mine = times.rows(of_times.get(step, NO_ROWS))
        held = of_windows.get(step, NO_ROWS)
        wasted = here[gathers[here] & (table.flags[here] & in_backward == in_backward)]
        in_vain = Counter(windows.unit[held[unused[held]]].tolist())
        # FSDP2's own prefetch in backward, dropped at its end: no window opens for it.
        in_vain |= Counter(table.unit[wasted].tolist())
        expected = zip(mine.unit, mine.phase, mine.expected_all_gathers, strict=True)
        yield StepGathers(
            rank=rank,
            step=step,
            rows=dict(rows),
            expected={(int(u), int(p)): int(e) for u, p, e in expected if p in PHASES},
            unused=in_vain,
            times=mine,
            micro_batches=count,
        )
