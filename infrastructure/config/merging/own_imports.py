"""User-defined files that a module imports, found in its source without importing it."""

import ast
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from infrastructure.core.named_object import source_file


def own_imports(module: str, ours: tuple[str, ...]) -> dict[str, Path]:
    """Return the files that a module imports from its own folder or package, directly or
    indirectly.

    The result maps each path, relative to that folder, to the file. The module's own file is left
    out. Imports inside functions are included. Imports whose names are computed at run time are not
    found.

    Args:
        ours: packages to leave out.
    """
    first = source_file(module)
    if first is None:
        return {}
    root = first.parents[module.count(".") + (first.name == "__init__.py")]
    seen: dict[str, Path] = {module: first}
    left = [module]
    while left:
        name = left.pop()
        for wanted in _imported(name, seen[name]):
            if wanted in seen or wanted.partition(".")[0] in ours:
                continue
            if (file := _file_below(root, wanted)) is not None:
                seen[wanted] = file
                left.append(wanted)
    del seen[module]
    return {file.relative_to(root).as_posix(): file for file in seen.values()}


def _file_below(root: Path, module: str) -> Path | None:
    """Return the source of a module if Python finds it in this folder and nowhere else."""
    path = root.joinpath(*module.split("."))
    for file in (path / "__init__.py", path.with_suffix(".py")):
        if file.is_file():
            return file if source_file(module) == file else None
    return None


def _imported(module: str, file: Path) -> tuple[str, ...]:
    """Return the names of the modules that a file imports, and of their parent packages."""
    parts = module.split(".")
    package = parts if file.name == "__init__.py" else parts[:-1]
    try:
        return _imported_in(file.read_bytes(), tuple(package))
    except (OSError, SyntaxError, ValueError):  # importing it reports the error
        return ()


@lru_cache(maxsize=256)  # several parts of a run may come from one module
def _imported_in(source: bytes, package: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that a source imports; in `from x import y`, `x.y` may be a module."""
    return tuple(_names_in(ast.parse(source), package))


def _names_in(tree: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            pieces = name.split(".")
            yield from (".".join(pieces[:n]) for n in range(1, len(pieces) + 1) if all(pieces[:n]))
