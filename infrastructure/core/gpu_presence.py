"""A check for GPUs that avoids importing PyTorch, because that import takes seconds."""

import ast
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

# One of these exists wherever a driver is loaded: on a PC, in a container, in WSL, on a Jetson.
DRIVER_TRACES = (
    *("proc/driver/nvidia", "dev/nvidiactl", "dev/nvidia0", "dev/dxg"),
    *("dev/nvmap", "dev/nvgpu", "dev/nvhost-gpu"),
)


def has_no_gpu(root: Path = Path("/")) -> bool:
    """Return whether PyTorch certainly sees no GPU.

    This is certain if PyTorch is built without CUDA and ROCm, or if no NVIDIA driver is loaded. If
    the result is False, PyTorch may see a GPU, and only importing it shows whether it does. `root`
    is for tests.
    """
    build = _build()
    if build is None or build.get("hip"):
        return False
    if build.get("cuda") is None:
        return True
    is_linux = sys.platform == "linux"
    return is_linux and not any((root / trace).exists() for trace in DRIVER_TRACES)


def _build() -> dict[str, str | None] | None:
    """Return the versions of CUDA and ROCm that PyTorch is built for, by name, or None."""
    try:
        file = Path(str(distribution("torch").locate_file("torch/version.py")))
        statements = ast.parse(file.read_text("utf-8")).body
    except (PackageNotFoundError, OSError, SyntaxError, ValueError):
        return None
    build: dict[str, str | None] = {}
    for each in statements:
        value = getattr(each, "value", None)
        targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
                build[target.id] = None if value.value is None else str(value.value)
    return build if {"cuda", "hip"} <= build.keys() else None
