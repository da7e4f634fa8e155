"""Recording of some steps of a run with the PyTorch profiler."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.profiler"

FEATURE = Feature(
    name="profiler",
    fields={"monitor": f"{_HERE}.config:ProfilerMonitor"},
    watchers=(f"{_HERE}.profiler:profiler_of",),
    report=(f"{_HERE}.report:profile_section",),
    run_files=("logs/performance/profile.json",),
)
