"""The fields, one file per section, each next to its description and its checks."""
