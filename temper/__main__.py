"""`python -m temper`: the `temper` command, the same as the installed command."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))  # the current folder, which may contain a torch.py, comes last

from infrastructure.commands.main import main_of_process as main

if __name__ == "__main__":
    sys.exit(main())
