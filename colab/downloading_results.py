"""`colab.download_results`: download a trained model and its report as one file."""

import importlib
import zipfile
from pathlib import Path

from colab.runtime import has_browser
from colab.transfer import require_free_space
from infrastructure.config.auto import is_lora_folder
from infrastructure.core.checksums import damaged_files
from infrastructure.core.errors import DamagedFileError, InputError
from infrastructure.core.files import atomic_write
from infrastructure.core.messages import phrase
from infrastructure.monitoring.drawing.formatting import format_bytes
from infrastructure.monitoring.records.run_list import RUN_FILE, find_run_path

MODEL = "final"
BESIDE = ("report.html", "summary.json", RUN_FILE, "metrics.csv")
INCOMPRESSIBLE = (".safetensors", ".png")
# The page holds a whole download in its memory, and one that is too large never starts.
MOST_FOR_BROWSER_BYTES = 500 * 10**6
OTHER_WAYS = "notebook.other_ways_to_download"


def download_results(run: str | Path | None = None, output_dir: str | Path = "runs") -> Path:
    """Zip a run's trained model and report, and let the browser download the file, if there is one.

    Args:
        run: the id or directory of the run; by default, the newest in `output_dir`.

    Returns:
        The zip file in the run's directory, which replaces an older one.

    Raises:
        ValueError: if there is no such run, or it has no trained model yet.
        StorageError: if the disk has too little free space.
        DamagedFileError: if the model is damaged.
    """
    directory = find_run_path(None if run is None else str(run), Path(output_dir))
    files = _files(directory)
    if damaged := damaged_files(directory / MODEL):
        raise DamagedFileError("notebook.trained_model_damaged", run=directory.name, files=damaged)
    size_bytes = sum(file.stat().st_size for file in files)
    require_free_space(phrase("notebook.zip_file"), directory, size_bytes)
    target = directory / f"{directory.name}.zip"
    with atomic_write(target) as part, zipfile.ZipFile(part, "w") as archive:
        for file in files:
            is_packed = file.suffix in INCOMPRESSIBLE
            how = zipfile.ZIP_STORED if is_packed else zipfile.ZIP_DEFLATED
            archive.write(file, Path(directory.name) / file.relative_to(directory), how)
    print(
        phrase(
            "notebook.results_zipped",
            run=directory.name,
            target=target,
            size=format_bytes(target.stat().st_size),
        )
    )
    model = directory / MODEL
    if is_lora_folder(str(model)) and not (model / "base").is_dir():
        print(phrase("notebook.only_adapter_zipped"))
    _offer(target)
    return target


def _files(directory: Path) -> list[Path]:
    """Return the files to include in the download of a run.

    Raises:
        ValueError: if the run has no trained model yet.
    """
    model = sorted(path for path in (directory / MODEL).rglob("*") if path.is_file())
    if not model:
        raise InputError("notebook.no_trained_model_yet", run=directory.name)
    return model + [path for name in BESIDE if (path := directory / name).is_file()]


def _offer(target: Path) -> None:
    """Offer the file to the browser as a download. If that fails, print other ways to get it."""
    if not has_browser():
        return
    size_bytes = target.stat().st_size
    if size_bytes > MOST_FOR_BROWSER_BYTES:
        most = format_bytes(MOST_FOR_BROWSER_BYTES)
        print(phrase("notebook.too_large_for_browser", limit=most, other_ways=phrase(OTHER_WAYS)))
        return
    try:
        importlib.import_module("google.colab.files").download(str(target))
    except Exception as error:  # the page raises its own kinds of errors
        print(
            phrase(
                "notebook.browser_download_failed",
                error=type(error).__name__,
                other_ways=phrase(OTHER_WAYS),
            )
        )
        return
    print(phrase("notebook.browser_download_pending"))
