"""A test process that reads a backup destination: `other_process FILE MODULE CLASS FOLDER PATH`.

It opens the destination with the user's suite class, which it imports by module name or from its
file. So a destination that keeps its content only in memory fails.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

WRITTEN_BACK = b"from another process"


def load_class(file: str, module: str, name: str) -> Any:
    """Return the class of a suite."""
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


def main() -> None:
    """Print the content of the first process's file, and write another file next to it."""
    file, module, name, folder, relative = sys.argv[1:]
    place, path = load_class(file, module, name)().open(Path(folder)), Path(relative)
    read = b"".join(place.read(path))
    answer = {"read": read.hex(), "names": place.names(path.parent), "identity": place.identify()}
    place.write(path.with_name("back"), [WRITTEN_BACK])
    place.close()
    print(f"\n{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
