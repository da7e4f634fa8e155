"""`temper train --detach`: its exit code is that of the process where no training came of it."""

import json
from pathlib import Path

import pytest

from infrastructure.commands import train
from infrastructure.commands.main import main
from infrastructure.config.deployment_config import DeploymentConfig


@pytest.mark.parametrize("code", [0, 1, 143])
def test_a_detached_training_hands_its_exit_code_on(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"Reverse {n}", "completion": str(n)[::-1]} for n in range(100, 140)]
    data.write_text("\n".join(map(json.dumps, rows)))
    seen: list[str] = []

    def detach(config: DeploymentConfig, accept: object) -> int:
        seen.append(str(config.data.path))
        return code

    monkeypatch.setattr(train, "detach", detach)
    words = ["train", str(data), "--detach", "--output-dir", str(tmp_path / "runs")]
    assert main(words) == code
    assert seen == [str(data)]
