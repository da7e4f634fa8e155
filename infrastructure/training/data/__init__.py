"""From files to token batches: readers, shapes, quarantine, token store, order."""
