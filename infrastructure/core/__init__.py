"""Layer 0: machine, files, errors, optional packages. It imports nothing from the other layers."""
