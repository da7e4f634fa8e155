"""The folder of the runs. Loads no torch."""

import tempfile
from pathlib import Path

from infrastructure.core.files import make_directory


def writable(output_dir: Path) -> Path:
    """`output_dir`, made if it is not there.

    Raises:
        ValueError: it cannot be written to.
    """
    try:
        make_directory(output_dir)
        with tempfile.TemporaryFile(dir=output_dir):
            return output_dir
    except OSError as error:
        raise ValueError(
            f"output_dir {output_dir} cannot be written to ({error.strerror}); choose another with"
            " --output"
        ) from error
