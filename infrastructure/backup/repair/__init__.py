"""Repair of a run from its versions or its backup destination, before the run resumes."""
