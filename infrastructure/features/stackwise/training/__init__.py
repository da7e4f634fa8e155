"""The parts of block-wise training: strategy, phases, storage formats and caches."""
