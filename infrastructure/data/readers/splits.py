"""Assignment of a folder's files to training, held-out and test data, by dataset card or file
names.

The card of a dataset (the front matter of README.md) names the files of each split. Without one,
file names decide, by the conventions of the Hugging Face Hub: `train-00000-of-00002.parquet`,
`data/validation/a.jsonl`, `questions.test.csv`. A file whose whole name is that of a split, or that
is in a folder with such a name, belongs to that split. A name that only begins or ends with that of
a split counts only if another file's name marks it as training data.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import yaml

from infrastructure.core.errors import InputError
from infrastructure.core.messages import phrase

TRAIN, HELD_OUT, TEST = "train", "validation", "test"
SPLITS = {
    **dict.fromkeys(("train", "training"), TRAIN),
    **dict.fromkeys(("validation", "valid", "val", "dev", "eval", "evaluation"), HELD_OUT),
    **dict.fromkeys(("test", "testing"), TEST),
}
NEUTRAL_WORDS = frozenset({"data", "dataset", "split", "set", "of", "part", "shard"})
CARD = "README.md"
MAX_CARD_BYTES = 1 << 20
FRONT_MATTER = re.compile(r"\A\ufeff?---\s*\n(.*?)^---\s*$", re.DOTALL | re.MULTILINE)

DOCUMENTS = frozenset(
    {
        *("readme", "license", "licence", "copying", "notice", "changelog", "contributing"),
        *("citation", "requirements", "authors", "code_of_conduct", "security"),
        *("checksum", "checksums", "md5sum", "md5sums", "sha256sum", "sha256sums", "manifest"),
    }
)
INDEXES = frozenset(
    {"dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "croissant.json"}
)
SETTINGS = frozenset(  # of data, models and programs; mentioned if they are left out
    f"{name}.json"
    for name in (
        *("index", "info", "meta", "metadata", "schema", "features", "stats", "config", "settings"),
        *("datapackage", "package", "vocab", "tokenizer", "tokenizer_config", "special_tokens_map"),
        *("generation_config", "preprocessor_config", "dataset_config"),
    )
)
NUM_SHOWN = 3


@dataclass(frozen=True)
class Parts:
    """The files of a folder, divided into training, held-out and test data.

    Attributes:
        notes: sentences on files that are not trained on, although the user may expect it.
    """

    train: list[Path]
    held_out: list[Path] = field(default_factory=list)
    test: list[Path] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def is_no_data(path: Path, others: Iterable[Path]) -> bool:
    """Return whether a file is not data itself: a dataset card, license, index or checksums.

    A readme counts as data if there are other files of its type.
    """
    name, stem = path.name.lower(), path.name.lower().partition(".")[0]
    if name in SETTINGS or name in INDEXES or name.endswith(".index.json"):
        return True
    if stem not in DOCUMENTS or path.suffix.lower() not in (".md", ".txt", ".json", ".markdown"):
        return False
    is_alike = any(one.suffix == path.suffix and not _is_document(one) for one in others)
    return not is_alike or bool(_front_matter(path)) or path.suffix.lower() == ".txt"


def _is_document(path: Path) -> bool:
    return path.name.lower().partition(".")[0] in DOCUMENTS


def parts_of(folder: Path, files: Sequence[Path], stem: Callable[[Path], str]) -> Parts:
    """Divide the data files of a folder into training, held-out and test data.

    Args:
        stem: returns the name of a file without its extensions.

    Raises:
        ValueError: the dataset card lists several configurations; the message names them and the
            alternative.
    """
    parts = _by_card(folder, files)
    return parts or _by_names(folder, files, stem)


def _by_names(folder: Path, files: Sequence[Path], stem: Callable[[Path], str]) -> Parts:
    whole = {path: _whole_split(path.relative_to(folder), stem(path)) for path in files}
    loose = {path: whole[path] or _loose_split(stem(path)) for path in files}
    is_named = TRAIN in loose.values()
    split = loose if is_named else whole
    train = [path for path in files if split[path] in (TRAIN, "")]
    if not train or len(train) == len(files):
        notes = _all_alike(folder, files, loose)
        notes += _of_several_folders(folder, (path for path in files if whole[path] == TRAIN))
        return Parts(list(files), notes=notes)
    parts = Parts(
        train,
        [path for path in files if split[path] == HELD_OUT],
        [path for path in files if split[path] == TEST],
    )
    if unnamed := [path for path in train if is_named and not split[path]]:
        parts.notes.append(
            phrase("data.file_without_split_name", files_are=_shown(folder, unnamed))
        )
    parts.notes.extend(_of_several_folders(folder, (p for p in train if split[p] == TRAIN)))
    return parts


def _of_several_folders(folder: Path, train: Iterable[Path]) -> list[str]:
    """Return a note if several subfolders each have a training split.

    These may be configurations of one dataset, which often contain the same rows in different
    forms.
    """
    folders = {path.parent for path in train if not _split_of_whole(path.parent.name)}
    if len(folders) < 2:
        return []
    shown = _shown(folder, sorted(folders))
    return [phrase("data.folders_trained_together", folders_are=shown)]


def _all_alike(folder: Path, files: Sequence[Path], split: Mapping[Path, str]) -> list[str]:
    """Return a note on files that are trained on although they are named like held-out files."""
    named = [path for path in files if split[path] in (HELD_OUT, TEST)]
    if not named or (len(named) == len(files) and len({split[path] for path in named}) == 1):
        return []
    return [phrase("data.held_out_names_trained", files_are=_shown(folder, named))]


def _whole_split(path: Path, stem: str) -> str:
    """Return the split that is the whole name of a file or of its nearest folder."""
    names = [stem, *(part for part in reversed(path.parent.parts))]
    return next((split for name in names if (split := _split_of_whole(name))), "")


def _split_of_whole(name: str) -> str:
    words = [word for word in _words(name) if word not in NEUTRAL_WORDS]
    return SPLITS.get(words[0], "") if len(words) == 1 else ""


def _loose_split(stem: str) -> str:
    """Return the split whose name is at the beginning or the end of a file name."""
    words = [word for word in _words(stem) if word not in NEUTRAL_WORDS]
    return next((SPLITS[word] for word in [*words[-1:], *words[:1]] if word in SPLITS), "")


def _words(name: str) -> list[str]:
    """Return the words of a file name, without numbers and hashes."""
    words = [word for word in re.split(r"[-_. ]+", name.lower()) if word]
    return [re.sub(r"\d+$", "", word) for word in words if not re.fullmatch(r"\w*\d\w*", word)] or [
        re.sub(r"\d+$", "", word) for word in words[:1]
    ]


def named(names: Sequence[str]) -> str:
    """Return file names as the subject and verb of a sentence: `a.csv, b.csv are`."""
    shown, more = ", ".join(names[:NUM_SHOWN]), len(names) - NUM_SHOWN
    if more > 0:
        return phrase("data.more_files_are", files=shown, count=more)
    return phrase("data.files_are" if len(names) > 1 else "data.files_is", files=shown)


def _shown(folder: Path, files: Sequence[Path]) -> str:
    return named([path.relative_to(folder).as_posix() for path in files])


def _front_matter(path: Path) -> dict[str, object]:
    """Return the front matter of a dataset card, which is YAML between lines of ---.

    Return {} if there is none.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            matter = FRONT_MATTER.match(file.read(MAX_CARD_BYTES))
        loaded = yaml.safe_load(matter[1]) if matter else None
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    return loaded if isinstance(loaded, dict) else {}


def _by_card(folder: Path, files: Sequence[Path]) -> Parts | None:
    """Return the division of the files that a dataset card defines.

    Return None if the card defines no training split with existing files.
    """
    listed = _front_matter(folder / CARD).get("configs") if (folder / CARD).is_file() else None
    configs = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    configured = {
        str(one.get("config_name", "default")): (one, splits)
        for one in configs
        if (splits := _files_of_config(folder, one, files))
    }
    if not configured:
        return None
    chosen = [name for name, (one, _) in configured.items() if one.get("default") is True]
    chosen = chosen or [name for name in configured if name == "default"] or list(configured)
    if len(chosen) > 1:
        raise InputError(
            _several(folder, {name: splits for name, (_, splits) in configured.items()})
        )
    splits = configured[chosen[0]][1]
    roles = {name: SPLITS.get(name.lower(), "") for name in splits}
    if TRAIN not in roles.values():
        return None
    used = {path for paths in splits.values() for path in paths}
    train, held_out, test = (
        [path for name, paths in splits.items() if roles[name] == role for path in paths]
        for role in (TRAIN, HELD_OUT, TEST)
    )
    parts = Parts(train, held_out, test)
    others = [path for name, paths in splits.items() if not roles[name] for path in paths]
    others += [path for path in files if path not in used]
    if others:
        whose = f" (configuration {chosen[0]})" if len(configured) > 1 else ""
        parts.notes.append(
            phrase(
                "data.file_not_in_card",
                files_are=_shown(folder, others),
                card=CARD,
                configuration=whose,
            )
        )
    return parts


def _files_of_config(
    folder: Path, config: Mapping[str, object], files: Sequence[Path]
) -> dict[str, list[Path]]:
    """Return the existing files of each split, for one configuration of a dataset card."""
    base = str(config.get("data_dir") or "")
    configured: dict[str, list[Path]] = {}
    for split, pattern in _patterns(config.get("data_files")):
        glob = str(PurePosixPath(base) / pattern)
        matched = [path for path in files if _matches(path.relative_to(folder).as_posix(), glob)]
        if matched:
            known = configured.setdefault(split, [])
            known += [path for path in matched if path not in known]
    return configured


def _patterns(listed: object) -> Iterable[tuple[str, str]]:
    """Yield (split, pattern) for the files that a card lists. The default split is "train"."""
    if isinstance(listed, str):
        yield TRAIN, listed
    elif isinstance(listed, dict):
        for split, paths in listed.items():
            yield from ((str(split), path) for path in _texts(paths))
    elif isinstance(listed, list):
        for one in listed:
            if isinstance(one, dict):
                split = str(one.get("split", TRAIN))
                yield from ((split, path) for path in _texts(one.get("path")))
            elif isinstance(one, str):
                yield TRAIN, one


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _matches(name: str, pattern: str) -> bool:
    """Return whether a path matches a pattern, in which ** stands for any number of folders."""
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", pattern.removeprefix("./"))
    ways = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    expression = "".join(ways.get(part) or re.escape(part) for part in parts)
    return re.fullmatch(expression, name) is not None


def _several(folder: Path, configs: Mapping[str, Mapping[str, Sequence[Path]]]) -> str:
    places = []
    for name, splits in configs.items():
        files = [path for split, paths in splits.items() for path in paths]
        folders = {path.parent for path in files}
        is_alone = len(folders) == 1 and folders != {folder}
        places.append(f"{name} ({next(iter(folders)) if is_alone else files[0]})")
    more = len(places) - NUM_SHOWN
    named = ", ".join(places[:NUM_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return phrase(
        "data.several_configurations",
        card=folder / CARD,
        num_configs=len(configs),
        configurations=named,
    )


def saved_splits(folder: Path) -> list[str]:
    """Return the splits of a dataset that `datasets.save_to_disk` wrote; [] for a single table."""
    try:
        listed = json.loads((folder / "dataset_dict.json").read_text("utf-8"))["splits"]
    except (OSError, ValueError, LookupError, TypeError):
        return []
    return [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
