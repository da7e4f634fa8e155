"""Repairing a run from its versions or its place before anything goes on with it."""
