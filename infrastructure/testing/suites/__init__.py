"""Conformance suites: what every part of one kind must do, whoever has written it.

A suite is a class whose `test_…` methods pytest runs in a subclass that says how the part is made:

    from infrastructure.testing.suites.storage_backend import StorageBackendSuite

    class TestMyPlace(StorageBackendSuite):
        def open(self, folder):
            return MyPlace(f"mine://{folder}")

Ours pass the same suites. A suite needs no pytest itself: each method takes a fresh folder and
raises AssertionError with a sentence, or `unittest.SkipTest` where a part has nothing to test.
"""
