"""`python -m infrastructure` is the `temper` command."""

import sys

from infrastructure.cli import main

if __name__ == "__main__":
    sys.exit(main())
