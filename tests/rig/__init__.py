"""What the tests record and diagnose: models, launchers, and runs of known truth.

- `models`: small models, some of whose compute is sleeps of exact length.
- `fake`: one process that trains as rank 0 of N on a modelled wire, and the truth.
- `ranks`: two to four real processes over gloo.
- `scripts/train.py`: a user's training script, healthy or with one fault.
- `scripts/sleep.py`: another one, whose compute is sleeps.
"""
