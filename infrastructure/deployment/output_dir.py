"""The folder of the runs. Loads no torch."""

import tempfile
from pathlib import Path


def writable(output_dir: Path) -> Path:
    """`output_dir`, made if it is not there.

    Raises:
        ValueError: it cannot be written to.
    """
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output_dir):
            return output_dir
    except OSError as error:
        raise ValueError(
            f"output_dir {output_dir} cannot be written to ({error.strerror}); choose another with"
            " --output"
        ) from error
