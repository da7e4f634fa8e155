"""The store of prepared examples on disk. They are written once and identified by a fingerprint."""
