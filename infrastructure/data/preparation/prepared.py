"""Opening of prepared data from the cache; missing data is prepared first."""

from infrastructure.config.sections.data_config import DataConfig
from infrastructure.config.sections.resource_config import CacheConfig
from infrastructure.data.preparation.plan import memory_bytes, plan_key
from infrastructure.data.preparation.preparation import Preparation, PreparationPlan
from infrastructure.data.store.token_cache import CacheEntry, TokenCache


def open_prepared(
    plan: PreparationPlan, data_config: DataConfig, cache_config: CacheConfig
) -> CacheEntry:
    """Return the cache entry of `plan`, and prepare the data first if the entry is missing.

    If another process is already preparing the same data, wait for its result.

    Raises:
        ValueError: the cache cannot be written.
        DataError: a process that prepares data died.
    """
    cache = TokenCache(cache_config, memory_bytes(data_config))
    return cache.open(plan_key(plan), lambda folder: Preparation(plan, folder).run())
