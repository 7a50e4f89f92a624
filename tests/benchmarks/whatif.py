"""Replay error and predictions against truth, on a modelled wire.

One command prints the table:

    python -m tests.benchmarks.whatif

Each change is predicted from one record of the job as it was, then made for real:
real FSDP2, recorded. Compute is sleeps and time is virtual, so that the table is the
same on every machine.
"""

# ruff: noqa: T201 - it prints a table

from __future__ import annotations

from itertools import combinations

from fsdpdoctor.quantities import ms, percent
from fsdpdoctor.simulate.predict import predict
from tests.simulate.jobs import APART, CHANGES, WIRES, base, measured


def main() -> None:
    """Print the table."""
    errors: list[float] = []
    right = pairs = 0
    for wire in WIRES:
        print(f"\n{wire / 1e6:.0f} MB/s: replay off by {percent(base(wire).error)}")
        steps: list[tuple[int, int]] = []
        for name, change in CHANGES.items():
            prediction = predict(base(wire), change.plan)
            step_ns, gathered = measured(wire, name)
            errors.append(prediction.step_ns / step_ns - 1)
            steps.append((prediction.step_ns, step_ns))
            same = "same" if prediction.gathered_peak_bytes == gathered else "DIFFERS"
            print(
                f"  {name:<15} predicted {ms(prediction.step_ns):>9}  measured "
                f"{ms(step_ns):>9}  {errors[-1]:+.2%}  gathered peak {same}"
            )
        for (p, a), (q, b) in combinations(steps, 2):
            if abs(a - b) > APART * min(a, b):
                pairs += 1
                right += (p < q) == (a < b)
    print(
        f"\nworst prediction {max(errors, key=abs):+.2%}; order right in {right} of "
        f"{pairs} pairs that differ by more than {percent(APART)}"
    )


if __name__ == "__main__":
    main()
