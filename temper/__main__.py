"""`python -m temper` is the `temper` command, and so is what is installed by that name."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    sys.path.append(sys.path.pop(0))  # the current folder, which may hold a torch.py, is last

from infrastructure.commands.main import main_of_process as main

if __name__ == "__main__":
    sys.exit(main())
