"""Optional packages: imported where they are needed, with the pip line in the error."""

import importlib
import importlib.util
from types import ModuleType

from infrastructure.core.errors import MissingPackageError

OLDEST_TORCHAO_FOR_PEFT = "0.16"  # peft 0.19 and later refuse older ones, as Colab has
PIP_LINES = {
    "bitsandbytes": "pip install bitsandbytes",
    "datasets": "pip install datasets",
    "h5py": "pip install h5py",
    "matplotlib": "pip install matplotlib",
    "peft": "pip install peft",
    "prometheus_client": "pip install prometheus_client",
    "pyarrow": "pip install pyarrow",
    "tensorboard": "pip install tensorboard",
    "transformers": "pip install transformers",
    "unsloth": "pip install --no-deps -r requirements-unsloth.txt",
}


def is_installed(package: str) -> bool:
    """Whether `package` could be imported; imports nothing."""
    return importlib.util.find_spec(package) is not None


def require(module: str, needed_for: str) -> ModuleType:
    """Import `module` now.

    Raises:
        MissingPackageError: it is not installed; says what it is needed for and the pip line.
    """
    package = module.split(".")[0]
    if not is_installed(package):
        line = PIP_LINES.get(package, f"pip install {package}")
        raise MissingPackageError(f"{needed_for} needs the package {package}: {line}")
    return importlib.import_module(module)
