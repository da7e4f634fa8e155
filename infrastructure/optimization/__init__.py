"""Layer 2: fitting a training to its machine; comes with part C."""
