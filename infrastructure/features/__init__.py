"""Layer 8: what hangs on the core's doors. One folder each, with everything that is its own.

The core never imports from here; `core/features.py` looks into this folder. Features never import
each other, and each folder can be deleted: then everything else works, and using the feature gives
one sentence.
"""
