"""What a helper process runs first: `python -P helper_main.py MODULE ARGUMENTS…`.

Nothing is imported before it is known where modules are looked for.
"""

import os  # Python itself has imported these two
import sys

PATH_VARIABLE = "_TEMPER_MODULE_PATH"


def main() -> None:
    """Run the module named first as `__main__`, with the modules that the parent finds."""
    sys.path[:] = os.environ.pop(PATH_VARIABLE).split("\n")
    import runpy

    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
