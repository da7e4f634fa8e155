"""`python -m infrastructure` is the `temper` command."""

import sys

if __name__ == "__main__":
    if not sys.flags.safe_path:  # the current folder, which may hold a torch.py, is looked at last
        sys.path.append(sys.path.pop(0))
    from infrastructure.commands.main import main_of_process

    sys.exit(main_of_process())
