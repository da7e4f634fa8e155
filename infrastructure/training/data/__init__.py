"""From files to token batches.

    path ─ sources, readers ─► rows ─ shapes ─► conversations ─ tokenization ─► examples
      ├─ what cannot be used: quarantine, with file, line and reason
      ├─ preparation writes them once: token_store, in the token_cache
      └─ DataPipeline draws them: order, streaming_dataset, prefetch; collate makes tensors

Format plug-ins: `sources.register_format`; augmentations: `augmentation.register_augmentation`.
"""
