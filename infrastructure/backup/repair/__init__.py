"""Repair of a run from its checkpoints or its backup destination, before the run resumes."""
