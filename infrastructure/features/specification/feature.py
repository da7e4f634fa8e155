"""Parts that only the specifications require: a run assembled by hand, and a model of agents."""

from infrastructure.core.features import Feature

_HERE = "infrastructure.features.specification"

FEATURE = Feature(
    name="specification",
    names={
        "DataPipeline": f"{_HERE}.whole_config",
        "ModelManager": f"{_HERE}.whole_config",
        "TrainingContext": f"{_HERE}.context",
        "UnslothTrainer": f"{_HERE}.whole_config",
        "initialize_training": f"{_HERE}.context",
        "should_checkpoint": f"{_HERE}.context",
    },
    plugins={
        "temper.models": {"tactical_mappo": f"{_HERE}.tactical_mappo:TacticalMappo"},
        "temper.adapters": {
            "tactical_mappo": f"{_HERE}.tactical_mappo_adapter:TacticalMappoAdapter",
        },
    },
    # Roles for which objects with other names exist. A class of such a name would be a second way
    # to do what the existing object does.
    instead={
        "BatchProcessor": "specification.instead_of_batch_processor",
        "BlockTrainer": "specification.instead_of_block_trainer",
        "CPUCache": "specification.instead_of_cpu_cache",
        "ComputeManager": "specification.instead_of_compute_manager",
        "DataManager": "specification.instead_of_data_manager",
        "GPUManager": "specification.instead_of_gpu_manager",
        "GPUMemoryAllocator": "specification.instead_of_gpu_memory_allocator",
        "MemoryManager": "specification.instead_of_memory_manager",
        "MemoryMonitor": "specification.instead_of_memory_monitor",
        "MetricsCollector": "specification.instead_of_metrics_collector",
        "OOMHandler": "specification.instead_of_oom_handler",
        "PerformanceMonitor": "specification.instead_of_performance_monitor",
        "PerformanceTracker": "specification.instead_of_performance_tracker",
        "Profiler": "specification.instead_of_profiler",
        "QuantumResourceManager": "specification.instead_of_quantum_resource_manager",
        "RackTrainer": "specification.instead_of_rack_trainer",
        "ResourceErrorHandler": "specification.instead_of_resource_error_handler",
        "ResourceManager": "specification.instead_of_resource_manager",
        "ResourceMonitor": "specification.instead_of_resource_monitor",
        "ResourceRecovery": "specification.instead_of_resource_recovery",
        "StackTrainer": "specification.instead_of_stack_trainer",
        "TrainingErrorHandler": "specification.instead_of_training_error_handler",
        "TrainingOptimizer": "specification.instead_of_training_optimizer",
    },
)
