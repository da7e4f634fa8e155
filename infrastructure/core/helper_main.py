"""The entry point of a helper process: `python -P helper_main.py MODULE ARGUMENTS…`.

It sets the module path before it imports anything else.
"""

import os  # Python has already imported these two
import sys

PATH_VARIABLE = "_TEMPER_MODULE_PATH"

if __name__ == "__main__":
    sys.path[:] = os.environ.pop(PATH_VARIABLE).split("\n")
    import runpy

    from infrastructure.core.standard_output import lossy_output

    del sys.argv[0]
    with lossy_output("stderr"):  # its reader is gone once the parent has ended
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
