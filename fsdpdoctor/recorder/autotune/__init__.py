"""The job tunes itself: settings tried between two steps, kept where they prove
themselves. Nothing here is imported where `--autotune` was not asked for.
"""
