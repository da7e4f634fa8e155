"""The on-disk format: objects, packs, manifests and the store of versions. See ../FORMAT.md."""
