"""Layer 3: one run, whatever trains it: its directory, lock, backups, restoring, repair, summary.

Nothing here imports torch or depends on a training loop. `deployment` and the bridge to
transformers use it.
"""
