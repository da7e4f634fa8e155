"""Packages that exist in their metadata alone, for tests of what reads metadata."""

from pathlib import Path


def install(
    folder: Path, name: str, version: str, requires: tuple[str, ...] = (), extra: str = ""
) -> None:
    """Write the metadata of `name` into `folder`; with `extra`, all of `requires` belongs to it."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    suffix = f' ; extra == "{extra}"' if extra else ""
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    lines += [f"Requires-Dist: {line}{suffix}" for line in requires]
    (info / "METADATA").write_text("\n".join(lines) + "\n")


def install_temper(folder: Path, needed: tuple[str, ...], **columns: tuple[str, ...]) -> None:
    """Write Temper's own metadata, with its extras `tested` and `colab`."""
    lines = list(needed)
    for column, requirements in columns.items():
        lines += [f'{requirement}; extra == "{column}"' for requirement in requirements]
    install(folder, "temper-train", "0.2.0", tuple(lines))


def install_torch(folder: Path, version: str, cuda: str | None) -> None:
    """Write PyTorch's metadata and the file that tells what it was built for."""
    install(folder, "torch", version)
    (folder / "torch").mkdir()
    (folder / "torch/version.py").write_text(
        f"from typing import Optional\n__version__ = '{version}'\ncuda: Optional[str] = {cuda!r}\n"
    )
