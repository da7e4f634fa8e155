from pathlib import Path

from google.colab import _state


def upload(target_dir=""):
    raise AssertionError("this would wait for a person for ever")


def upload_file(filename):
    raise AssertionError("this would wait for a person for ever")


def download(filename):
    """The real one returns at once, and the page may fetch the file when the cell has ended."""
    _state.note("download", filename=str(filename))
    if not Path(filename).exists():
        raise FileNotFoundError(f"Cannot find file: {filename}")
