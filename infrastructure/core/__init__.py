"""Layer 0: facts about the machine, files, errors, optional packages. Imports nothing of the project."""
