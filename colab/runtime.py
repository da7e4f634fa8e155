"""Where this process runs: on Colab, on Kaggle, in another notebook, or in no notebook.

Needs nothing but Python: it is asked before anything is installed.
"""

import os
from enum import StrEnum
from pathlib import Path

from infrastructure.core.lookup import look_up
from infrastructure.core.notebook import in_notebook_kernel

VARIABLE = "TEMPER_PLATFORM"
# What Colab's own package asks for. Variables do not tell: Kaggle's kernels have ten COLAB_* ones.
COLAB_FILE = Path("/var/colab/hostname")
KAGGLE_VARIABLE = "KAGGLE_KERNEL_RUN_TYPE"


class Platform(StrEnum):
    """Who lends the machine, and whether a notebook looks on."""

    COLAB = "colab"
    KAGGLE = "kaggle"
    NOTEBOOK = "notebook"
    TERMINAL = "terminal"


def platform() -> Platform:
    """Where this process runs; the variable TEMPER_PLATFORM knows better.

    A `!command` and a script on a Colab machine run on Colab too.

    Raises:
        ValueError: TEMPER_PLATFORM names no platform.
    """
    name = os.environ.get(VARIABLE, "").strip().lower()
    if name:
        return look_up(VARIABLE, name, {str(one): one for one in Platform})
    if COLAB_FILE.exists():
        return Platform.COLAB
    if os.environ.get(KAGGLE_VARIABLE):
        return Platform.KAGGLE
    return Platform.NOTEBOOK if in_notebook_kernel() else Platform.TERMINAL


def has_browser() -> bool:
    """Whether a page of Colab may answer this process: give consent, hand out secrets, download.

    A script and a `!command` have none. That the page is Colab's own, and no other program that
    shows notebooks, nobody tells: whatever asks it must bound its wait.
    """
    return platform() is Platform.COLAB and in_notebook_kernel()
