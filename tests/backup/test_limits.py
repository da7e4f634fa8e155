"""The limits of backups are those that were measured, and that machines in use already expect."""

import importlib
from typing import Any

import pytest

MIB = 1024**2
LIMITS: dict[str, dict[str, Any]] = {
    "run_backup": {"POLL_SECONDS": 0.1, "CONTACT_SECONDS": 60.0, "ENDS_SECONDS": 10.0},
    "format.codec": {"LEVEL": 1, "SEGMENT_BYTES": 8 * MIB, "LARGEST_BYTES": 256 * MIB},
    "format.direct_io": {"BLOCK_BYTES": 4 * MIB},
    "format.file_operations": {"CHUNK_BYTES": 2 * MIB, "NUM_THREADS": 2},
    "format.lineage": {"MOST_NAMES": 256},
    "format.manifest": {"MAX_MANIFEST_BYTES": 64 * MIB, "MAX_OBJECT_BYTES": 1024**4},
    "format.packs": {"PACK_BYTES": 64 * MIB},
    "repair.run_repair": {"READ_ALL_BYTES": 4096 * MIB},
    "replication.apart": {"NUM_ATTEMPTS": 4, "FIRST_WAIT_SECONDS": 1.0},
    "replication.bandwidth": {"PIECE_BYTES": MIB, "BURST_SECONDS": 1.0},
    "replication.claims": {"NUM_KEPT": 16, "MOST_TRIES": 64},
    "replication.copier_process": {"NICENESS": 10, "POLL_SECONDS": 0.5, "STATUS_SECONDS": 1.0},
    "replication.download": {"NUM_ATTEMPTS": 6, "NUM_LOOKS": 2, "FIRST_WAIT_SECONDS": 0.5},
    "replication.folder_upload": {"FIRST_WAIT_SECONDS": 0.2, "LONGEST_WAIT_SECONDS": 15.0},
    "replication.remote_pruning": {"GRACE_SECONDS": 3600.0},
    "replication.remote_session": {"SURELY_WRONG": 5},
    "replication.second_looks": {
        "LOOK_AGAIN_SECONDS": 600.0,
        "MOST_LOOKS_PER_HOUR": 1000,
        "READING_SHARE": 0.05,
        "UNSEEN_SECONDS": 60.0,
        "MISSING_SECONDS": 600.0,
        "LAST_WAITS_SECONDS": (0.5, 1.0, 2.0, 4.0, 8.0),
        "LAST_SECONDS": 60.0,
    },
    "replication.upload": {
        "WINDOW_BYTES": 512 * MIB,
        "PATIENCE_SECONDS": 600.0,
        "DOUBTFUL_SECONDS": 60.0,
        "NUM_LOOKS": 4,
        "FIRST_WAIT_SECONDS": 0.5,
        "LONGEST_WAIT_SECONDS": 15.0,
    },
    "backends.bucket": {"MOST_REMOVALS": 100},
    "backends.fsspec_place": {"ONE_REQUEST_BYTES": 96 * MIB},
    "backends.hub": {"SMALL_BYTES": 16 * MIB, "MOST_PENDING": 100, "NUM_TRIES": 5},
    "state.model_state": {"MAX_LISTED": 10},
    "state.run_files": {"PIECE_BYTES": 256 * 1024, "LARGEST_BYTES": 64 * MIB},
    "writer.background_writer": {"ENDS_SECONDS": 1.0},
    "writer.shared_buffer": {"ALIGNMENT_BYTES": 64, "GROWTH_BYTES": 16 * MIB},
    "writer.writer_process": {"NICENESS": 10},
}


@pytest.mark.parametrize("name", LIMITS)
def test_the_limits_are_those_that_were_measured(name: str) -> None:
    module = importlib.import_module(f"infrastructure.backup.{name}")
    assert {limit: getattr(module, limit) for limit in LIMITS[name]} == LIMITS[name]
