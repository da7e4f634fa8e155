"""What shows at once is answered before PyTorch is loaded, which takes seconds."""

import json
import os
import subprocess
import sys
from pathlib import Path

from infrastructure.core.gpu_presence import has_no_gpu
from tests.commands.test_wrong_input import TABLE, is_about

ROOT = Path(__file__).parents[2]
WITHOUT_TORCH = """
import contextlib, io, json, os, sys
HEAVY = "torch", "transformers", "peft"
class Refusing:
    # Notes what is imported: who tries to may pass over the failure.
    def find_spec(self, name, path=None, target=None):
        if name in HEAVY:
            imported.append(name)
            raise ImportError(name)
imported = []
sys.meta_path.insert(0, Refusing())
from infrastructure.commands import main
for folder, words in json.loads(sys.stdin.read()):
    os.chdir(folder)
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        code = main.main(words)
    print(json.dumps([code, error.getvalue().strip().splitlines()[-1]]))
    assert imported == [], words
"""
ROWS = (
    "preferences as text",
    "a file with one row",
    "invalid UTF-8",
    "mostly broken JSON",
    "an unknown shape",
    "a damaged Parquet file",
    "folder without a model",
    "model configuration that is no JSON",
    "output that is a file",
    "a run that is not there",
    "a run.json of something else",
    "an unknown thing to accept",
    "plugin scheme",
    "webhook",
    "place file",
    "a GPU that is not there",
    "a GPU by a number that is not there",
    "fp16 on a CPU",
    "4 bits of the small model",
    "weights of 4 bits that train",
    "rows that share no scale",
    "flash attention on a CPU",
    "pictures that are not there",
    "longer than the model sees",
    "hub model offline",
    "a data set of the Hub that is nowhere",
    "evaluating an unfinished run",
    "exporting over other files",
)
WRONG_SETTINGS = {
    "train --mode sidewise": "config.wrong_value(setting=training.mode,",
    "resume --mode sidewise": "config.wrong_value(setting=training.mode,",
    "tune --mode sidewise": "config.wrong_value(setting=training.mode,",
    "train --keep-checkpoints 1": "config.wrong_value(setting=training.keep_checkpoints,",
    "train --quantum-solver azure_quantum": "quantum.sampler_access_missing(name=azure_quantum",
    "train nowhere.jsonl": "nowhere.jsonl",
    "train --eval-data nowhere.jsonl": "nowhere.jsonl",
    "train --model ./nowhere": "./nowhere",
    "tune nowhere.jsonl": "nowhere.jsonl",
    "train --model nowhere.gguf": "gguf",
    "train --fsdp": "--fsdp",
    "search": "commands.unknown_command(word=search",
}


def test_a_slip_is_answered_without_torch(tmp_path: Path) -> None:
    """One process shows it of all commands."""
    rows = [row for row in ROWS if has_no_gpu() or not row.startswith("a GPU ")]
    slips = [wrong for wrong in TABLE if wrong.what in rows]
    assert len(slips) == len(rows)
    given = []
    for wrong in slips:
        folder = tmp_path / wrong.what.replace(" ", "-")
        folder.mkdir()
        for name, content in wrong.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        words = wrong.command if isinstance(wrong.command, list) else wrong.command.split()
        given.append([str(folder), words])
    empty = tmp_path / "empty"
    empty.mkdir()
    given += [[str(empty), words.split()] for words in WRONG_SETTINGS]
    environment = {name: v for name, v in os.environ.items() if not name.startswith("DWAVE_")}
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
        env={**environment, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )
    answers = [*map(json.loads, done.stdout.splitlines())]
    of_settings = answers[len(slips) :]
    for words, (code, sentence) in zip(WRONG_SETTINGS, of_settings, strict=True):
        assert (code, WRONG_SETTINGS[words] in sentence) == (2, True), (words, sentence)
    assert [*empty.iterdir()] == []
    for wrong, (code, sentence) in zip(slips, answers[: len(slips)], strict=True):
        assert code == 2, (wrong.what, sentence)
        assert [part for part in wrong.about if not is_about(sentence, part)] == [], wrong.what
