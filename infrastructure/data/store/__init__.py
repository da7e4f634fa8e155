"""The store of prepared examples on disk, written once and found again by its fingerprint."""
