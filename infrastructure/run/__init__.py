"""Layer 3: one run, whatever trains it: its directory, lock, backups, restore, repair, summary.

No module of this package imports torch or depends on a training loop. `deployment` and the bridge
to transformers use this package.
"""
