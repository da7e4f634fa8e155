"""Plug-ins that are nowhere are told when a run starts, and nothing is imported for it."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infrastructure.config.deployment_config import DeploymentConfig
from infrastructure.config.merging.plugin_names import (
    as_json,
    code_of,
    find_where_they_were,
    from_json,
    origins_of,
    require_shareable,
    unknown_plugins,
)
from infrastructure.config.registries import ADAPTERS, EXTENSIONS
from infrastructure.core import registry
from infrastructure.core.files import file_sha256


def make(*arguments: object) -> object:
    """In the place of a class: what a function makes is looked at when it is made."""
    return arguments


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"training.strategy": "no_such:X"},
            r"setting=training\.strategy, .*module_not_found\(.*address=no_such:X, module=no_such,",
        ),
        (
            {"training.metrics": "no_such:x,math:sqrt"},
            r"setting=training\.metrics, .*module_not_found\(kind=metric, address=no_such:x,",
        ),
        (
            {"monitor.alert_sinks": "no_such:X"},
            r"setting=monitor\.alert_sinks, .*\(kind=alert sink, address=no_such:X,",
        ),
        (
            {"model.adapter": "standart"},
            r"setting=model\.adapter, .*core\.unknown_plugin\(.*meant=standard\)",
        ),
        (
            {"training.enabled_extensions": "quantun"},
            r"setting=training\.enabled_extensions, .*core\.unknown_plugin\(.*meant=quantum\)",
        ),
    ],
)
def test_what_is_nowhere_is_reported(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DeploymentConfig(**settings).check_supported()


def test_what_is_there_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_strategy.py").write_text("raise SystemExit('imported')")
    DeploymentConfig(**{"training.strategy": "their_strategy:X"}).check_supported()
    assert "their_strategy" not in sys.modules


def test_ones_own_goes_before_a_name_that_is_built_in() -> None:
    config = DeploymentConfig(**{"training.enabled_extensions": ["multimodal"]})
    assert len(config.problems()) == 2
    with EXTENSIONS.registered("multimodal", make):
        assert config.problems() == []


def test_what_a_run_began_with_is_known_again_and_called_by_its_package() -> None:
    origins = {
        "temper.strategies": {"theirs": {"address": "nowhere:X", "package": "theirs==1.2"}},
        "temper.backends": {"theirs": {"address": "nowhere:Place", "package": "theirs==1.2"}},
        "temper.losses": {"mine": {"address": None, "package": None}},
    }
    values = {"training": {"strategy": "theirs", "loss": "mine"}, "backup": {"place": "theirs://x"}}
    given = ("training.strategy", "training.loss", "backup.place")
    sources = {key: {"layer": "keyword", "place": "a test"} for key in given}
    saved = {"values": values, "sources": sources, "masked": [], "plugins": origins}
    config = DeploymentConfig.from_dict(saved)
    assert config.to_dict()["plugins"] == origins
    assert config.changed([]).to_dict()["plugins"] == origins
    loss, package = config.problems()
    assert loss.startswith("config.setting_says(setting=training.loss, ")
    assert "core.plugin_of_another_script(kind=loss, name=mine)" in loss
    assert package == (
        "config.plugin_package_missing(package=theirs==1.2,"
        " needed_by=training.strategy (theirs), backup.place (theirs))"
    )
    assert "plugins" not in DeploymentConfig().to_dict()
    with pytest.raises(
        ValueError, match=r"=training\.strategy, .*what=training strategy, name=theirs,"
    ):
        DeploymentConfig(**{"training.strategy": "theirs"}).check_supported()


def test_what_only_this_process_knows_is_refused_where_another_needs_it() -> None:
    config = DeploymentConfig(**{"model.adapter": "local"})
    require_shareable(config)
    with (
        ADAPTERS.registered("local", lambda *arguments: None),
        pytest.raises(ValueError, match=r"setting=model\.adapter, .*core\.plugin_not_importable"),
    ):
        require_shareable(config)


@pytest.mark.parametrize(
    ("key", "decides"),
    [
        *((f"training.{name}", True) for name in ("strategy", "optimizer", "scheduler_type")),
        *((f"training.{name}", True) for name in ("method", "loss", "enabled_extensions")),
        *((f"{name}", True) for name in ("model.adapter", "data.format", "data.augmentation")),
        *((f"training.{name}", False) for name in ("metrics", "metrics_sinks")),
        ("monitor.alert_sinks", False),
        ("backup.place", False),
    ],
)
def test_of_own_parts_the_code_of_those_that_decide_the_result_is_recorded(
    key: str, decides: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_part.py").write_text("import their_helper\n")
    (tmp_path / "their_helper.py").write_text("x = 1\n")
    address = "their_part:X"
    config = DeploymentConfig(**{key: f"{address}://a" if key == "backup.place" else address})
    [(name, code)] = [*next(iter(code_of(config).values()), {}).items()] or [("", {})]
    assert name == (address if decides else "")
    assert [*code.get("imports", {})] == ["their_helper.py"] * decides
    (tmp_path / "their_helper.py").write_text("x = 2\n")
    assert (code_of(config) != {}) is decides
    for group, parts in code_of(config).items():
        assert parts[name]["sha256"] == code["sha256"], group
        assert parts[name]["imports"] != code["imports"]
    monkeypatch.setattr(registry, "package_of", lambda address: "theirs==1.2")
    assert code_of(config) == {}, "the version of its package stands for it"


def test_where_a_part_came_from_is_recorded_and_it_is_taken_from_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "moved_part.py"
    file.write_text("X = 1\n")
    config = DeploymentConfig(**{"training.strategy": "moved_part:X", "model.adapter": "standard"})
    with monkeypatch.context() as there:
        there.setattr(sys, "path", [*sys.path, str(tmp_path)])
        saved = as_json(origins_of(config, {}))
        origins = from_json(json.loads(json.dumps(saved)))
        assert find_where_they_were(origins) == [], "Python finds it"
    origin = {"address": "moved_part:X", "package": None, "file": str(file)}
    origin["sha256"] = file_sha256(file)
    assert saved == {"temper.strategies": {"moved_part:X": origin}}
    assert as_json(origins_of(config, origins)) == as_json(origins) == saved
    monkeypatch.setattr(sys, "path", [*sys.path])
    file.write_text("X = 2\n")
    assert find_where_they_were(origins) == []
    lost = f"config.plugin_file_lost(file={file}, key=training.strategy, name=moved_part:X, "
    [problem] = unknown_plugins(config, config.source, origins)
    assert problem == f"{lost}problem=config.plugin_file_changed())"
    file.rename(tmp_path / "kept")
    [problem] = unknown_plugins(config, config.source, origins)
    assert problem == f"{lost}problem=config.plugin_file_missing(file=moved_part.py))"
    file.write_text("X = 1\n")
    taken = f"config.plugin_taken_from_original_file(address=moved_part:X, file={file})"
    assert find_where_they_were(origins) == [taken]
    assert (sys.path[-1], find_where_they_were(origins)) == (str(tmp_path), [])
    assert [*unknown_plugins(config, config.source, origins)] == []
