"""Conformance suites: the requirements of every part of one kind, built-in or user-defined.

A suite is a class with `test_…` methods that pytest runs in a subclass, which defines how the part
is created:

    from infrastructure.testing.suites.storage_backend import StorageBackendSuite

    class TestMyPlace(StorageBackendSuite):
        def open(self, folder):
            return MyPlace(f"mine://{folder}")

Temper's own parts pass the same suites. A suite itself does not need pytest: each method receives
an empty folder and raises AssertionError with a sentence, or `unittest.SkipTest` if a part has
nothing to test.
"""
