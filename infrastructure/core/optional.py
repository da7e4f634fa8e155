"""Imports of optional packages.

The error for a missing package has the pip command to install it.
"""

import importlib
import importlib.util
import sys
from types import ModuleType

from infrastructure.core.errors import MissingPackageError
from infrastructure.core.messages import phrase

DISTRIBUTION = "temper-train"  # the project's name in pip
OLDEST_TORCHAO_FOR_PEFT = "0.16"  # peft 0.19 and later reject older ones, such as Colab's
TESTED_TRL = ">=0.29.1,<=1.14.2"  # from Colab's version to that in requirements.txt
PIP_LINES = {
    "azure.quantum": 'pip install "azure-quantum[qiskit]"',
    "lm_eval": 'pip install "lm_eval>=0.4.9,<0.5"',
    "PIL": "pip install pillow",
    "trl": f'pip install "trl{TESTED_TRL}"',
    "unsloth": "pip install --no-deps -r requirements-unsloth.txt",
}


def is_installed(package: str) -> bool:
    """Return whether `package` is installed. Only its parent packages are imported."""
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False


def refuse_missing(module: str, needed_for: str) -> None:
    """Raise an error if `module` is not installed, without importing it.

    Args:
        needed_for: what needs the package: the code of a message, or the text itself.

    Raises:
        MissingPackageError: if `module` is not installed.
    """
    # Packages such as azure.quantum share their first name with other packages.
    package = module if module in PIP_LINES else module.split(".")[0]
    if not is_installed(package):
        line = PIP_LINES.get(package, f"pip install {package}")
        raise MissingPackageError(
            "core.package_not_installed",
            needed_for=phrase(needed_for),
            package=package,
            command=line,
        )


def require(module: str, needed_for: str) -> ModuleType:
    """Import `module` and return it.

    Raises:
        MissingPackageError: if `module` is not installed. The message says what needs it and names
            the pip command.
    """
    refuse_missing(module, needed_for)
    return importlib.import_module(module)


def import_without(module: str, unused: str) -> None:
    """Import `module` as if `unused`, a package that it can do without, were not installed.

    Later imports of `unused` work as usual. Nothing is done if `module` or `unused` is already
    imported, or if `module` is not installed.
    """
    if module in sys.modules or unused in sys.modules or not is_installed(module):
        return
    sys.modules[unused] = None  # type: ignore[assignment] # Python's mark for a missing module
    try:
        importlib.import_module(module)
    finally:
        del sys.modules[unused]
