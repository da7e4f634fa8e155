"""The runs of a folder, and the look-up of a run by its name. No checkpoints are read."""

import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from infrastructure.core.errors import InputError
from infrastructure.core.files import require_listable
from infrastructure.core.json_text import as_object, json_of
from infrastructure.core.lookup import unknown_name
from infrastructure.core.messages import phrase

RUN_FILE = "run.json"
MODEL_NOT_FOUND = "models.model_not_found"  # in this error a run may be meant
MAX_NAMED = 3  # runs to list for a wrong name
OF_A_MODEL = ("config.json", "adapter_config.json", "temper_model.json")  # a model has one of them
FINAL = "final"  # in a finished run: the trained model
VERSIONS, VERSION_SUFFIX = "versions", ".json"  # a checkpoint's manifest: checkpoints/versions/NAME
TRAINER_KEY: Final = "trainer"  # in run.json of a transformers Trainer's run
_KEPT_NAME = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9.-]{0,38}"
)  # a name that is unchanged in the folder's name
_NUMBERED = re.compile(r"checkpoint-(\d+)")  # the names that transformers uses
BEGAN_AT = re.compile(r"^\d{8}-\d{6}-(?=.)")  # in an ID, before the part that tables show
_BEGINS_WITH_TIME = re.compile(r"20\d\d")
ID = re.compile(r"(?P<second>\d{8}-\d{6})(?:-(?P<name>.+?))?(?:-(?P<part>[0-9a-f]{4}))?")


class NoSuchRunError(InputError):
    """An error for the name of a run that does not exist. The text lists the existing runs."""


def is_of_a_script(record: Mapping[str, object]) -> bool:
    """Return whether a run.json belongs to a Trainer which the user's own script created.

    Only the script of such a run can resume it.
    """
    return TRAINER_KEY in record and "configuration" not in record


def how_to_run_again(record: Mapping[str, object]) -> str:
    """Return how to resume a run of the user's own Trainer, with the name of the script if it is
    known.
    """
    try:
        words = shlex.split(str(record.get("command", "")))
    except ValueError:
        words = []
    name = Path(words[0]).name if words else ""
    if name.endswith("kernel_launcher.py"):
        return phrase("monitoring.run_cell_again")
    if not name.endswith(".py") or name.startswith("__"):  # -c, or -m
        return phrase("monitoring.run_your_script_again")
    return phrase("monitoring.run_script_again", command=shlex.join(words))


def runs_in(output_dir: Path) -> list[Path]:
    """Return the run directories in `output_dir`, the oldest first.

    Raises:
        PermissionError: if the folder cannot be listed, so it may contain runs.
    """
    return sorted((path.parent for path in _glob(output_dir, f"*/{RUN_FILE}")), key=began)


def run_folders(output_dir: Path) -> list[Path]:
    """Return the runs in `output_dir`, even those that have checkpoints but no run.json."""
    by_file = {path.parent for path in _glob(output_dir, f"*/{RUN_FILE}")}
    by_checkpoints = {path.parents[1] for path in _glob(output_dir, "*/checkpoints/versions")}
    return sorted(by_file | by_checkpoints, key=began)


def _glob(output_dir: Path, pattern: str) -> Iterator[Path]:
    if output_dir.is_dir():
        require_listable(output_dir)
        yield from output_dir.glob(pattern)


def began(run: Path) -> tuple[str, str, str]:
    """Return the key by which runs are sorted: the time in the ID, and the name.

    The time consists of the second, and the fraction of the second in hexadecimal. If the ID has no
    time, the time of run.json is used.

    Runs are sorted in the order in which they began even if the clock was set back, because new IDs
    always come after existing ones (see `run.directory.plan_run`).
    """
    if (own := ID.fullmatch(run.name)) is not None:
        return own["second"], own["part"] or "", run.name
    if _BEGINS_WITH_TIME.match(run.name):
        return run.name, "", run.name
    record = run / RUN_FILE
    moment = (record if record.exists() else run).stat().st_mtime
    return *moment_of(moment), run.name


def moment_of(seconds: float) -> tuple[str, str]:
    """Return a Unix time as in run IDs: the second in local time, its fraction in hex."""
    second = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
    return second, f"{int(seconds % 1 * 0x10000):04x}"


def finished_model(name: str) -> str:
    """Resolve a missing `FOLDER/final` to the model of the newest finished run in FOLDER.

    Any other name is returned unchanged.
    """
    path = Path(name)
    if path.name != FINAL or path.exists():
        return name
    models = [run / FINAL for run in runs_in(path.parent) if (run / FINAL).is_dir()]
    return str(models[-1]) if models else name


def run_named(name: str, output_dir: Path) -> Path | None:
    """Return the newest run called `name` in `output_dir`.

    A name may be a path (`runs/my-run`), which determines the folder.

    The name of a run is the one that the user gave (`--name`), or the part of its ID after the
    time. Return None if there is no such run.
    """
    if (run := _newest_named(name, output_dir)) is not None:
        return run
    path = Path(name).expanduser()
    return _newest_named(path.name, path.parent) if len(path.parts) > 1 else None


def _newest_named(name: str, output_dir: Path) -> Path | None:
    runs = [*reversed(runs_in(output_dir))]
    if _KEPT_NAME.fullmatch(name):  # otherwise the folder's name differs
        runs = [run for run in runs if name in run.name]
    named = next((run for run in runs if _given_name(run) == name), None)
    # Tables show the end of a run's ID. A custom Trainer's run has an ID without a time, which may
    # also be the name of a model on the Hub.
    timed = (run for run in runs if BEGAN_AT.match(run.name))
    return named or next((run for run in timed if BEGAN_AT.sub("", run.name) == name), None)


def _given_name(run: Path) -> object:
    try:
        return as_object(as_object(json_of(run / RUN_FILE)["config"])["run_name"]).get("value")
    except (TypeError, KeyError):  # damaged, or a custom Trainer's
        return None


def split_version(name: str) -> tuple[str, str | None]:
    """Split a name into a run and a checkpoint, which is None if the name has none.

    A checkpoint is given as `RUN@120`, `RUN@best`, or a path (`RUN/checkpoint-120`, or
    `RUN/checkpoints/versions/NAME.json` with the checkpoint NAME). No file is read.
    """
    path = Path(name)
    if path.parent.name == VERSIONS and path.suffix == VERSION_SUFFIX:
        return str(path.parents[2]), path.stem
    if (numbered := _NUMBERED.fullmatch(path.name)) is not None:
        return str(path.parent), numbered[1]
    run, at, version = name.rpartition("@")
    return (run, version) if version and at and "/" not in version else (name, None)


def names_version(name: str) -> bool:
    """Return whether a name has the form of a run's checkpoint and is not an existing folder."""
    return split_version(name)[1] is not None and not Path(name).expanduser().is_dir()


def _is_model_or_run(path: Path) -> bool:
    """Return whether the path is a file, or a folder with a model or a run.

    A folder of data is neither, even if it has the same name as a run.
    """
    if not path.is_dir():
        return path.exists()
    if any((path / name).exists() for name in (*OF_A_MODEL, RUN_FILE, FINAL)):
        return True
    return next(path.glob("*.gguf"), None) is not None


def model_of_run(name: str, output_dir: Path) -> str:
    """Resolve a run's ID or name to the path of its trained model; if it has no model, to the run's
    path.

    Any other name is returned unchanged, because it may be that of a model on the Hub. An ID
    without a time, as of a run by the user's own Trainer, is also returned unchanged.
    """
    if _is_model_or_run(Path(name)):
        return name
    by_id = output_dir / name
    is_id = _BEGINS_WITH_TIME.match(name) and (by_id / RUN_FILE).is_file()
    run = by_id if is_id else run_named(name, output_dir)
    if run is None:
        return name
    return str(run / FINAL if (run / FINAL).is_dir() else run)


def run_or_model(name: str, output_dir: Path) -> str:
    """Resolve a name to the path of a run or its model. Other paths and Hub names are unchanged.

    A run's ID or name, alone or in a folder of runs (`my-run`, `runs/my-run`, `runs/my-run/final`),
    becomes the path of the run or of its model; `runs/final` becomes the model of the newest
    finished run there.

    Raises:
        ValueError: if the name is that of a checkpoint, which must first be exported as a model.
    """
    name = finished_model(name)
    run, version = split_version(name)
    if _is_model_or_run(Path(name)) and (version is None or Path(name).is_dir()):
        return name
    if version is not None and _is_run(run, output_dir):
        raise InputError("monitoring.checkpoint_instead_of_model", name=name, run=run)
    if version is not None and "@" in Path(name).name:  # which no name on the Hub contains
        raise InputError(
            "monitoring.unknown_run_of_checkpoint",
            name=name,
            run=run,
            output_dir=output_dir,
            example=output_dir / "RUN",
        )
    if (output_dir / name).is_dir():
        return str(output_dir / name)
    is_model = Path(name).name == FINAL
    named = run_named(str(Path(name).parent) if is_model else name, output_dir)
    if named is None:
        return name
    return str(named / FINAL if is_model else named)


def _is_run(name: str, output_dir: Path) -> bool:
    """Return whether a run, or its trained model, has this name."""
    try:
        find_run_path(name, output_dir)
    except NoSuchRunError:
        return False
    return True


@contextmanager
def naming_runs(output_dir: Path) -> Iterator[None]:
    """Return a context that adds a list of the runs to an error about a missing model.

    The user may have meant the name of a run.
    """
    try:
        yield
    except InputError as error:
        about = error.message.about if error.message.code == MODEL_NOT_FOUND else {}
        meant = Path(about.get("name", ""))
        folder = meant.parent if len(meant.parts) > 1 else output_dir
        runs = runs_in(folder)
        if not about or (not runs and len(meant.parts) > 1):
            raise
        if not runs:
            raise InputError(
                "monitoring.no_model_and_no_runs", error=error, folder=folder
            ) from None
        known = unknown_name("run", meant.name, _names(runs, meant.name), MAX_NAMED)
        raise InputError(
            "monitoring.neither_run_nor_model",
            folder=folder,
            unknown_run=known,
            all_runs=phrase("monitoring.hint_list_runs"),
            reason=about["reason"],
        ) from None


def _names(runs: Sequence[Path], wrong: str) -> list[str]:
    """Return the names of the runs to list in an error. If `wrong` looks like an ID, return IDs."""
    is_id = _BEGINS_WITH_TIME.match(wrong)
    given = ((None if is_id else _given_name(run), run.name) for run in runs)
    return [*dict.fromkeys(name if isinstance(name, str) else of_id for name, of_id in given)]


def find_run_path(name: str | None, output_dir: Path) -> Path:
    """Return the directory of the run that the user named.

    Args:
        name: the run's ID, its path, the path of its trained model, or the name that the user has
            given it (the newest run of that name). By default, the newest run is used.

    Raises:
        NoSuchRunError: if there is no such run; the message lists the runs, or says how to restore
            a run from a backup.
        ValueError: if the name is that of a checkpoint.
    """
    runs = runs_in(output_dir)
    if name is None:
        if not runs:
            raise NoSuchRunError("monitoring.no_runs", output_dir=output_dir)
        return runs[-1].resolve()
    given, by_name = Path(name), {path.name: path for path in runs}
    name = str(given)  # removes the slash of a shell's completion
    of_model = [given.parent] if given.name == FINAL else []
    for path in (given, *of_model):
        if (path.resolve() / RUN_FILE).is_file():
            return path.resolve()
    if name not in by_name:
        for path in (given, *of_model):
            if (named := run_named(str(path), output_dir)) is not None:
                return named.resolve()
        run, version = split_version(name)
        if version is not None and _is_run(run, output_dir):
            raise InputError("monitoring.checkpoint_instead_of_run", name=name, run=run)
        wrong = run if "@" in given.name else name
        known = unknown_name("run or checkpoint", wrong, _names(runs, wrong), MAX_NAMED)
        restore = phrase("monitoring.hint_restore_run")
        raise NoSuchRunError(
            "monitoring.unknown_run_or_checkpoint",
            output_dir=output_dir,
            unknown_run=known,
            hint=phrase("monitoring.hint_list_runs") if by_name else restore,
        )
    return by_name[name].resolve()
