"""Prepared examples on disk: written once, and found again by a fingerprint."""
