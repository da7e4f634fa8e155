"""Layer 3: one training run: its directory, lock, backups, restore, repair and summary.

No module of this package imports torch or depends on a particular training loop. `deployment` and
the bridge to transformers use this package.
"""
