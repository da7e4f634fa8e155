"""The fields, one file a section, each beside what may be said about it."""
