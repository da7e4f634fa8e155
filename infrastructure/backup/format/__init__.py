"""The on-disk format: objects, packs, manifests and the store of checkpoints. See ../FORMAT.md."""
