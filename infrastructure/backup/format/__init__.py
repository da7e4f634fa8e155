"""The format on disk: objects, packs, manifests and the store of versions. See ../FORMAT.md."""
