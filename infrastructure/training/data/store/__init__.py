"""Prepared examples on disk: written once, found again by a fingerprint."""
