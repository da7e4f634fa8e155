"""Layer 0: machine, files, errors, optional packages. Imports nothing of the project."""
