import gc
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Iterator

import pytest

from infrastructure.optimization.garbage import ScheduledCollection


class Node:
    """Part of a cycle, which only the collector can free."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def automatic_collection(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing was set aside yet. What is imported stays so, since to look at it takes a second; a
    process of its own really sets it aside below."""
    frozen = [0]

    def freeze() -> None:
        frozen[0] = len(gc.get_objects())

    def unfreeze() -> None:
        frozen[0] = 0

    monkeypatch.setattr(gc, "freeze", freeze)
    monkeypatch.setattr(gc, "unfreeze", unfreeze)
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen[0])
    yield
    gc.enable()


def test_cycles_are_freed_when_it_is_time_and_not_before() -> None:
    now = [0.0]
    collection = ScheduledCollection(interval_seconds=10.0, clock=lambda: now[0])
    collection.start()
    assert not gc.isenabled()
    assert gc.get_freeze_count() > 0
    dead = weakref.ref(Node())
    now[0] = 9.0
    collection.collect_if_due()
    assert dead() is not None
    now[0] = 10.0
    collection.collect_if_due()
    assert dead() is None
    assert collection.num_collections == 2  # the other one at the start
    now[0] = 19.9
    collection.collect_if_due()
    assert collection.num_collections == 2
    collection.stop()
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_time_that_collections_take_is_counted() -> None:
    times = iter([1.0, 1.5, 11.4, 11.5, 12.0, 13.0])
    collection = ScheduledCollection(interval_seconds=10.0, clock=lambda: next(times))
    collection.start()
    collection.collect_if_due()
    collection.collect_if_due()
    collection.stop()
    assert (collection.num_collections, collection.seconds) == (2, 0.5 + 1.0)


def test_what_was_off_before_stays_off() -> None:
    gc.disable()
    collection = ScheduledCollection()
    collection.start()
    collection.start()
    collection.stop()
    assert not gc.isenabled()


def test_what_was_set_aside_before_stays_so() -> None:
    gc.freeze()
    collection = ScheduledCollection()
    collection.start()
    made_later = weakref.ref(Node())
    collection.stop()
    assert gc.get_freeze_count() > 0
    gc.collect()
    assert made_later() is None


def test_nothing_is_collected_outside_of_start_and_stop() -> None:
    collection = ScheduledCollection(interval_seconds=0.0)
    collection.collect_if_due()
    collection.stop()
    assert collection.num_collections == 0
    assert gc.isenabled()


def test_a_process_of_its_own_sets_aside_what_it_made_after_its_imports() -> None:
    """Else each collection looks at the model, its optimizer and all that was imported late."""
    code = """
        import gc, weakref
        from infrastructure.core.importing import importing, own_process
        from infrastructure.optimization.garbage import ScheduledCollection

        class Cycle:
            def __init__(self):
                self.itself = self

        own_process()
        with importing():
            import fractions
        assert gc.get_freeze_count() > 1000
        of_the_training, made_later = Cycle(), [[] for _ in range(100_000)]
        dead = weakref.ref(of_the_training)
        collection = ScheduledCollection()
        collection.start()
        assert len(gc.get_objects()) < 1000, len(gc.get_objects())
        collection.stop()
        del of_the_training
        gc.collect()
        assert dead() is None, "the next training of this process has less memory"
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
