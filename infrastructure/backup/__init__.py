"""Versions that survive: a content-addressed store, and its copies elsewhere. See FORMAT.md."""
