"""What a helper process runs first: `python -P helper_main.py MODULE ARGUMENTS…`.

Nothing is imported before it is known where modules are looked for.
"""

import os  # Python itself has imported these two
import sys

PATH_VARIABLE = "_TEMPER_MODULE_PATH"

if __name__ == "__main__":
    sys.path[:] = os.environ.pop(PATH_VARIABLE).split("\n")
    import runpy

    from infrastructure.core.standard_output import lossy_output

    del sys.argv[0]
    with lossy_output("stderr"):  # nobody reads it when the parent has ended
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
