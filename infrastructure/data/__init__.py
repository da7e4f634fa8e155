"""Layer 3: the path from data files to token batches.

    path ─ sources, readers ─► rows ─ shapes ─► conversations ─ tokenization ─► examples
      ├─ quarantine records each row that cannot be used, with file, line and reason
      ├─ preparation writes the examples once: token_store, in the token_cache
      └─ DataPipeline reads them: order, streaming_dataset, prefetch; collate makes tensors

Format plug-ins: `sources.register_format`; augmentations: `augmentation.register_augmentation`.
"""
