"""No garbage is searched for meanwhile, and afterwards as before."""

import gc
import subprocess
import sys
import textwrap

import pytest

from infrastructure.core.importing import importing


def run_alone(code: str) -> None:
    """In a process of its own: what tests import is set aside already."""
    imports = "import gc, weakref\nfrom infrastructure.core.importing import *\n"
    subprocess.run([sys.executable, "-c", imports + textwrap.dedent(code)], check=True)


def test_the_search_goes_on_afterwards() -> None:
    assert gc.isenabled()
    with importing():
        assert not gc.isenabled()
        with importing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_an_error_does_not_end_the_search_for_good() -> None:
    with pytest.raises(ImportError), importing():
        raise ImportError("no such package")
    assert gc.isenabled()


def test_a_process_of_its_own_looks_at_imports_no_more() -> None:
    run_alone(
        """
        with importing():
            import decimal
        assert gc.get_freeze_count() == 0  # somebody else's garbage may be among it
        own_process()
        with importing():
            import fractions
        assert gc.get_freeze_count() > 1000 and gc.isenabled()
        assert may_freeze()
        with searching_rarely():
            pass
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() == COLLECTED_AFTER
        """
    )


def test_a_notebook_s_garbage_goes_first_and_its_search_comes_back() -> None:
    run_alone(
        """
        class Cycle:
            def __init__(self):
                self.itself = self

        before = gc.get_threshold()
        gone = weakref.ref(Cycle())
        with searching_rarely():
            assert gone() is None
            assert gc.get_threshold() == COLLECTED_AFTER
            of_the_training = weakref.ref(Cycle())
            with importing():
                pass
            assert gc.get_freeze_count() > 1000
            with searching_rarely():  # as where a run goes on
                pass
            assert gc.get_freeze_count() > 1000
        assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
        gc.collect()
        assert of_the_training() is None
        """
    )


def test_what_others_have_set_aside_stays() -> None:
    run_alone(
        """
        assert may_freeze()
        gc.freeze()
        assert not may_freeze()
        with searching_rarely(), importing():
            assert not may_freeze()
        assert gc.get_freeze_count() > 1000
        """
    )


def test_a_process_that_encodes_rows_has_no_torch() -> None:
    run_alone(
        """
        import os, sys
        do_without_torch()
        assert sys.modules["torch"] is None
        assert os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] == "1"
        sys.modules["torch"] = gc
        do_without_torch()
        assert sys.modules["torch"] is gc  # what is there already stays
        """
    )
