"""Repairing a run from its versions or its backup destination before it resumes."""
