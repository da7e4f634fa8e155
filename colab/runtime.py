"""The platform of this process: Colab, Kaggle, another notebook, or outside of notebooks.

This module needs only Python, because it is used before anything is installed.
"""

import os
from enum import StrEnum
from pathlib import Path

from infrastructure.core.lookup import look_up
from infrastructure.core.notebook import in_notebook_kernel

VARIABLE = "TEMPER_PLATFORM"
# What Colab's own package checks. Variables prove nothing: Kaggle's kernels have ten COLAB_* ones.
COLAB_FILE = Path("/var/colab/hostname")
KAGGLE_VARIABLE = "KAGGLE_KERNEL_RUN_TYPE"


class Platform(StrEnum):
    """Where a process runs: on Colab, on Kaggle, in another notebook, or in a terminal."""

    COLAB = "colab"
    KAGGLE = "kaggle"
    NOTEBOOK = "notebook"
    TERMINAL = "terminal"


def platform() -> Platform:
    """Return the platform of this process. The variable TEMPER_PLATFORM takes precedence.

    A `!command` and a script on a Colab machine also run on Colab.

    Raises:
        ValueError: if TEMPER_PLATFORM names no platform.
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
    """Return whether this process may use a page of Colab, for consent, secrets or downloads.

    A script or a `!command` cannot use the page. It is unknown whether the page is Colab's own or
    that of another program that shows notebooks, so every request to the page must have a time
    limit.
    """
    return platform() is Platform.COLAB and in_notebook_kernel()
