"""A method of a suite in another process, which imports the suite's class itself.

What a part keeps only in the memory of a process is missing there.
"""

import importlib
import importlib.util
import inspect
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from infrastructure.core.helper_process import HelperProcess
from infrastructure.core.messages import phrase

LIMIT_SECONDS = 120.0


def call_elsewhere(suite: type, method: str, *arguments: str) -> tuple[HelperProcess, bytes]:
    """Call a method of a suite in another process, and return the ended process and its output.

    Raises:
        AssertionError: the suite is defined in a function, so no other process can import it.
    """
    if "<" in suite.__qualname__:
        raise AssertionError(phrase("conformance.suite_in_function", suite=suite.__name__))
    place = inspect.getfile(suite), suite.__module__, suite.__qualname__
    process = HelperProcess(__name__, *place, method, *arguments, stdout=subprocess.PIPE)
    assert process.stdout is not None
    timer = threading.Timer(LIMIT_SECONDS, process.kill)
    timer.start()
    output = process.stdout.read()
    process.wait()
    timer.cancel()
    process.close_pipes()
    return process, output


def _load_class(file: str, module: str, name: str) -> Any:
    sys.path.append(str(Path(file).parent))
    try:
        target: Any = importlib.import_module(module)
    except ImportError:
        spec = importlib.util.spec_from_file_location(module, file)
        assert spec is not None
        assert spec.loader is not None
        target = sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(target)
    for part in name.split("."):
        target = getattr(target, part)
    return target


if __name__ == "__main__":
    file, module, name, method, *arguments = sys.argv[1:]
    getattr(_load_class(file, module, name)(), method)(*arguments)
