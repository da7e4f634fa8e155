"""No garbage is searched for meanwhile, and afterwards as before."""

import gc
import subprocess
import sys

import pytest

from infrastructure.core.importing import importing


def test_the_search_goes_on_afterwards() -> None:
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    with importing():
        assert not gc.isenabled()
        with importing():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() == frozen  # somebody else's garbage may be among it


def test_an_error_does_not_end_the_search_for_good() -> None:
    with pytest.raises(ImportError), importing():
        raise ImportError("no such package")
    assert gc.isenabled()


def test_a_process_of_its_own_looks_at_imports_no_more() -> None:
    code = (
        "import gc\nfrom infrastructure.core.importing import importing, own_process\n"
        "own_process()\n"
        "with importing():\n    import decimal\n"
        "assert gc.get_freeze_count() > 1000 and gc.isenabled()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
