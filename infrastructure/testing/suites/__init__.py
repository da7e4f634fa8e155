"""Conformance test suites: the requirements for all parts of one kind, built-in or user-defined.

A suite is a class with `test_…` methods. You subclass it, define how your part is created, and run
pytest:

    from infrastructure.testing.suites.storage_backend import StorageBackendSuite

    class TestMyPlace(StorageBackendSuite):
        def open(self, folder):
            return MyPlace(f"mine://{folder}")

Temper's own parts pass the same suites. A suite works without pytest, too: each method takes an
empty folder, and raises AssertionError with an explanation, or `unittest.SkipTest` if it does not
apply to the part.
"""
