"""Scripts without `if __name__ == "__main__":` that have rows prepared by several processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.slow import slow_but

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from transformers import PreTrainedTokenizerFast
from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.data_pipeline import DataPipeline

with open("read_as", "a") as file:
    file.write(__name__ + "\\n")

class Mine(PreTrainedTokenizerFast):
    pass

def main():
    kind = Mine if sys.argv[2] == "own" else PreTrainedTokenizerFast
    tokenizer = kind.from_pretrained(sys.argv[1])
    config = DataConfig(path="rows.jsonl", num_workers=2, max_length=64)
    cache = CacheConfig(directory="cache")
    pipeline = DataPipeline(config, tokenizer, cache_config=cache, seed=0)
    pipeline.prepare()
    Path("rows").write_text(str(pipeline.num_examples))

"""


GUARDED = "if __name__ == '__main__':\n    main()"
FORMS = {
    "plain": ("plain", "main()", {"__main__"}),
    "own class": ("own", "main()", {"__main__", "__mp_main__"}),
    "own class, guarded": ("own", GUARDED, {"__main__", "__mp_main__"}),
}


@pytest.mark.parametrize("form", slow_but(["plain"], FORMS))
def test_f12_a_script_without_a_guard_trains(saved_llama: Path, tmp_path: Path, form: str) -> None:
    kind, call, read_as = FORMS[form]
    rows = [{"prompt": f"{n} plus {n % 7}", "completion": str(n + n % 7)} for n in range(900)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "script.py").write_text(SCRIPT + call)
    command = [sys.executable, "script.py", str(saved_llama), kind]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert int((tmp_path / "rows").read_text()) > 800
    assert {*(tmp_path / "read_as").read_text().split()} == read_as
    assert ("core.script_trains_when_imported()" in done.stderr) == (form == "own class")
