"""Layer 3: one run, whoever trains it: its directory, lock, copies, restoring, repair, summary.

Nothing here imports torch or knows a training; deployment and the bridge to transformers use it.
"""
