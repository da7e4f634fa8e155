"""Layer 0: machine, files, errors, optional packages. Imports nothing else from the project."""
