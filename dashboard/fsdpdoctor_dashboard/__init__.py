"""The Dash app: a run's report, timeline and what-ifs in a browser."""
