"""Readers of data files: detection of file types, and a reader for each format."""
