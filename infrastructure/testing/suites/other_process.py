"""Another process's look at a place, for its suite: `… FILE MODULE CLASS FOLDER PATH`.

The suite's own class opens the place, so its module is imported: by its name, or from its file.
What a class keeps in memory, and takes for a place, is not there.
"""

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

WRITTEN_BACK = b"from another process"


def load_class(file: str, module: str, name: str) -> Any:
    """The class of a suite."""
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
    """Read what the first process has written, write something beside it, and say what was read."""
    file, module, name, folder, relative = sys.argv[1:]
    place, path = load_class(file, module, name)().open(Path(folder)), Path(relative)
    read = b"".join(place.read(path))
    answer = {"read": read.hex(), "names": place.names(path.parent), "identity": place.identify()}
    place.write(path.with_name("back"), [WRITTEN_BACK])
    place.close()
    print(f"\n{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
