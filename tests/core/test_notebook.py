"""A notebook's kernel is told from everything else that has IPython loaded."""

import sys
from types import SimpleNamespace

import pytest

from infrastructure.core.notebook import in_notebook_kernel


@pytest.mark.parametrize(
    ("shell", "expected"),
    [(SimpleNamespace(kernel=object()), True), (SimpleNamespace(), False), (None, False)],
)
def test_only_a_shell_with_a_kernel_is_a_notebook(
    monkeypatch: pytest.MonkeyPatch, shell: object, expected: bool
) -> None:
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert in_notebook_kernel() is expected


def test_without_ipython_there_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook_kernel()
