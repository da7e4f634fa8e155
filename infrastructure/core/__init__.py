"""Layer 0: machine, files, errors, optional packages. It imports nothing else from the project."""
