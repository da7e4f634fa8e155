"""A faster import of transformers, without slow parts that Temper does not need.

With every model, transformers imports large libraries of which it needs only one function: scipy
for losses of object detection, torchao to save quantized weights, scikit-learn for assisted
generation. Temper delays the import of each library until that function is called. transformers
also reads the source of all its models twice to list their contents, although once is enough, and
reads the file lists of all packages on the machine to look up three of them. Together this takes a
second at every start, and more if many packages are installed.
"""

import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

# Packages that are their own distribution; transformers looks them up at every start.
ALONE = ("torch", "accelerate", "torchao")

read_distributions = importlib.metadata.packages_distributions


@contextmanager
def transformers_imported_lightly() -> Iterator[None]:
    """Make imports of transformers and its parts faster inside the block."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:  # imported code may have replaced it
            sys.meta_path.remove(finder)


@contextmanager
def _function_deferred(library: str, function: str, _importer: ModuleType) -> Iterator[None]:
    """Import `library` only when its `function` is called, if the block imports that function."""
    if library in sys.modules:
        yield
        return
    stand_in = _StandIn(library, function)
    sys.modules[library] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(library) is stand_in:
            del sys.modules[library]


@contextmanager
def _read_once(import_utils: ModuleType) -> Iterator[None]:
    """Read each package's file list and each model's source at most once inside the block.

    File lists are read only when a package is looked up. transformers passes the folder of all
    models under two names to a function that caches its results by name; here, both become the same
    name.
    """
    importlib.metadata.packages_distributions = Distributions
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = read_distributions
    name = "create_import_structure_from_path"
    read = getattr(import_utils, name, None)
    if read is None:  # not in this version of transformers
        return

    @functools.wraps(read)
    def read_once(path: str | os.PathLike[str]) -> Any:
        folder = Path(path)
        return read(str(folder.parent if folder.is_file() else folder))

    setattr(import_utils, name, read_once)


class Distributions(Mapping[str, list[str]]):
    """A lazy version of `importlib.metadata.packages_distributions`: import name → distributions.

    All packages are read only if a looked-up name may differ from the name of its distribution.
    """

    def __getitem__(self, package: str) -> list[str]:
        if package in ALONE and _is_distribution(package):
            return [package]
        return self._all[package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @functools.cached_property
    def _all(self) -> Mapping[str, list[str]]:
        return read_distributions()


def _is_distribution(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


# Module, or package of modules → what wraps the execution of its code on import.
AROUND: dict[str, Callable[[ModuleType], AbstractContextManager[None]]] = {
    "transformers.loss": functools.partial(
        _function_deferred, "scipy.optimize", "linear_sum_assignment"
    ),
    "transformers.quantizers.quantizer_torchao": functools.partial(
        _function_deferred,
        "torchao.prototype.safetensors.safetensors_support",
        "flatten_tensor_state_dict",
    ),
    "transformers.generation.candidate_generator": functools.partial(
        _function_deferred, "sklearn.metrics", "roc_curve"
    ),
    "transformers.utils.import_utils": _read_once,
}


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        around = AROUND.get(fullname) or AROUND.get(fullname.rpartition(".")[0])
        if around is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, around)
        return spec


class _Loader(Loader):
    def __init__(
        self, loader: Loader, around: Callable[[ModuleType], AbstractContextManager[None]]
    ) -> None:
        self.loader, self.around = loader, around

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self.loader  # as other code expects it
        with self.around(module):
            self.loader.exec_module(module)


class _StandIn(ModuleType):
    """A placeholder for a library with one function. Using the function loads the library."""

    def __init__(self, library: str, function: str) -> None:
        super().__init__(library)
        setattr(self, function, functools.partial(_call, library, function))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python checks whether it is a package
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)


def _call(library: str, function: str, *arguments: Any, **named: Any) -> Any:
    return getattr(_real(library), function)(*arguments, **named)


def _real(library: str) -> ModuleType:
    if isinstance(sys.modules.get(library), _StandIn):
        del sys.modules[library]
    return importlib.import_module(library)
