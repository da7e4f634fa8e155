"""Names that the specifications give to roles which objects with other names fill here.

Importing one of them from `infrastructure.training` raises an ImportError with its line. A class of
that name would be a second way to do what the existing object already does.
"""

ELSEWHERE = {
    "BatchProcessor": "DataPipeline(config).process_batch(batch) prepares a batch for the model,"
    " and training.batch_size auto chooses its size",
    "BlockTrainer": "training.mode blockwise has one phase for each block, layerwise one for each"
    " layer; UnifiedTrainer(config).train_all_layers(dataloader, model_layers) trains your own"
    " layers in this way",
    "CPUCache": "cache.memory_size and cache.disk_size limit the cache of prepared data, which"
    " DataPipeline(config) manages",
    "ComputeManager": "the settings device and resources choose the hardware;"
    " initialize_training(config) prepares a run on it, and quantum_solve(problem) calls a sampler",
    "DataManager": "DataPipeline(config) prepares data and returns batches; with data.streaming it"
    " reads the data through a StreamingDataset",
    "GPUManager": "create_gpu_optimizer(device_ids=[0]) of"
    " infrastructure.optimization.gpu_optimizer optimizes a model for a GPU, and the setting"
    " device chooses the GPU",
    "GPUMemoryAllocator": "PyTorch allocates memory, memory.gpu_memory_fraction and"
    " memory.gpu_cache_size limit it, and MemoryOptimizer().optimize() frees what is unused",
    "MemoryManager": "create_memory_optimizer() of infrastructure.optimization.memory_optimizer"
    " has optimize_for_training(model) and optimize(); in a run, the setting"
    " enable_memory_optimization turns it on",
    "MemoryMonitor": "TrainingMonitor().sample() reads the memory of the machine and its GPUs, and"
    " MemoryOptimizer().get_memory_info() also that of this process",
    "MetricsCollector": "context.state.metrics has the current metrics, MetricsLogger writes them,"
    " and TrainingMonitor().latest() returns the newest together with the machine's",
    "OOMHandler": "the loop repeats the batch in smaller micro-batches, as"
    " training.recovery.out_of_memory configures; is_out_of_memory(error) of"
    " infrastructure.training.core.error_handlers recognizes such an error",
    "PerformanceMonitor": "TrainingMonitor has log_training_metrics(metrics) and"
    " get_performance_summary(); monitor.profile_steps records steps with PyTorch's profiler",
    "PerformanceTracker": "TrainingMonitor has log_training_metrics(metrics) and"
    " get_performance_summary(); MetricsLogger writes the metrics to files",
    "Profiler": "monitor.profile_steps records steps of a run with PyTorch's profiler, and"
    " MemoryOptimizer().memory_profiler(name) measures the memory of a code block",
    "QuantumResourceManager": "quantum.solver selects the sampler, and other quantum settings its"
    " limits and fallback; quantum_solve(problem) calls it",
    "RackTrainer": "training.strategy end_to_end has one phase for the whole rack, with one loss;"
    " UnifiedTrainer(config).train_all_layers(dataloader, model_layers) trains your own layers in"
    " this way",
    "ResourceErrorHandler": "training.recovery and quantum.fallback configure how errors are"
    " handled; is_device_fault(error) of infrastructure.training.core.error_handlers recognizes an"
    " error of a GPU",
    "ResourceManager": "MemoryOptimizer().optimize() frees memory, and find_fastest(config) of"
    " infrastructure.deployment.tuning (temper tune) measures the fastest settings",
    "ResourceMonitor": "TrainingMonitor(thresholds={...}) has start_monitoring() and sample(), and"
    " raises an alert if a value exceeds its threshold",
    "ResourceRecovery": "the loop rolls back to the newest good checkpoint, as training.recovery"
    " configures, and TrainingDeployment(config).run() resumes a run that was killed",
    "StackTrainer": "training.strategy progressive has one phase for each stack, and"
    " training.end_to_end_scope stackwise trains all stacks in each step;"
    " UnifiedTrainer(config).train_all_layers(dataloader, model_layers) trains your own layers in"
    " this way",
    "TrainingErrorHandler": "the loop handles errors as training.recovery configures;"
    " is_out_of_memory(error) of infrastructure.training.core.error_handlers recognizes an"
    " out-of-memory error",
    "TrainingOptimizer": "find_fastest(config) of infrastructure.deployment.tuning (temper tune)"
    " measures the fastest batch size, precision, checkpointing and learning rate",
}
