"""The prepared data of a plan: made once, and found by whoever has the same plan."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.preparation import plan as planning
from infrastructure.data.preparation.plan import plan_preparation
from infrastructure.data.preparation.prepared import open_prepared
from tests.data.builders import byte_level_tokenizer


def test_equal_plans_share_an_entry_and_others_do_not(data: Path, cache: Path) -> None:
    def opened(**settings: object) -> tuple[bool, Path]:
        config = DataConfig(path=str(data), **settings)
        plan = plan_preparation(config, byte_level_tokenizer())
        entry = open_prepared(plan, config, CacheConfig(directory=str(cache)))
        entry.close()
        return entry.was_there, entry.store.folder

    was_there, folder = opened()
    assert not was_there
    assert opened() == (True, folder)
    was_there, other = opened(max_length=8)
    assert (was_there, other == folder) == (False, False)


def test_an_entry_larger_than_the_limit_stays_on_disk(
    data: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "memory", lambda: SimpleNamespace(total_bytes=8_000))
    for limit, is_in_memory in ((None, True), ("25%", False)):
        config = DataConfig(path=str(data), memory_limit=limit)
        plan = plan_preparation(config, byte_level_tokenizer())
        entry = open_prepared(plan, config, CacheConfig(directory=str(cache)))
        entry.close()
        assert entry.store.is_in_memory is is_in_memory
