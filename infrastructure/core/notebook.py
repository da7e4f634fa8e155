"""Detection of notebooks."""

import sys


def in_notebook_kernel() -> bool:
    """Return whether this process is a notebook's kernel. A `!command` in a cell is not one."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell is not None and hasattr(shell, "kernel")
