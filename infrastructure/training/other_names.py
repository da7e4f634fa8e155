"""A table of role names in the specifications for which objects with other names exist here.

Importing one of them from `infrastructure.training` raises an ImportError with its line. A class of
that name would be a second way to do what the existing object already does.
"""

# The code of the message for each name.
ELSEWHERE = {
    "BatchProcessor": "training.instead_of_batch_processor",
    "BlockTrainer": "training.instead_of_block_trainer",
    "CPUCache": "training.instead_of_cpu_cache",
    "ComputeManager": "training.instead_of_compute_manager",
    "DataManager": "training.instead_of_data_manager",
    "GPUManager": "training.instead_of_gpu_manager",
    "GPUMemoryAllocator": "training.instead_of_gpu_memory_allocator",
    "MemoryManager": "training.instead_of_memory_manager",
    "MemoryMonitor": "training.instead_of_memory_monitor",
    "MetricsCollector": "training.instead_of_metrics_collector",
    "OOMHandler": "training.instead_of_oom_handler",
    "PerformanceMonitor": "training.instead_of_performance_monitor",
    "PerformanceTracker": "training.instead_of_performance_tracker",
    "Profiler": "training.instead_of_profiler",
    "QuantumResourceManager": "training.instead_of_quantum_resource_manager",
    "RackTrainer": "training.instead_of_rack_trainer",
    "ResourceErrorHandler": "training.instead_of_resource_error_handler",
    "ResourceManager": "training.instead_of_resource_manager",
    "ResourceMonitor": "training.instead_of_resource_monitor",
    "ResourceRecovery": "training.instead_of_resource_recovery",
    "StackTrainer": "training.instead_of_stack_trainer",
    "TrainingErrorHandler": "training.instead_of_training_error_handler",
    "TrainingOptimizer": "training.instead_of_training_optimizer",
}
