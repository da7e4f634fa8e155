"""A table of role names in the specifications for which objects with other names exist here.

Importing one of them from `infrastructure.training` raises an ImportError with its line. A class of
that name would be a second way to do what the existing object already does.
"""

ELSEWHERE = {
    "BatchProcessor": "DataPipeline(config).process_batch(batch) makes a batch for the model, and"
    " training.batch_size auto finds its size",
    "BlockTrainer": "training.mode blockwise has a phase for each block, layerwise for each layer;"
    " UnifiedTrainer(config).train_all_layers(dataloader, model_layers) trains so what you give it",
    "CPUCache": "cache.memory_size and cache.disk_size bound the cache of prepared data, which"
    " DataPipeline(config) keeps",
    "ComputeManager": "device and resources of the configuration say what is used;"
    " initialize_training(config) puts a training there, quantum_solve(problem) asks a sampler",
    "DataManager": "DataPipeline(config) prepares data and gives batches; with data.streaming it"
    " reads them through a StreamingDataset",
    "GPUManager": "create_gpu_optimizer(device_ids=[0]) of"
    " infrastructure.optimization.gpu_optimizer fits a model to a GPU, and device of the"
    " configuration chooses one",
    "GPUMemoryAllocator": "PyTorch allocates, memory.gpu_memory_fraction and memory.gpu_cache_size"
    " bound it, and MemoryOptimizer().optimize() gives back what nothing uses",
    "MemoryManager": "create_memory_optimizer() of infrastructure.optimization.memory_optimizer has"
    " optimize_for_training(model) and optimize(); in a run enable_memory_optimization does it",
    "MemoryMonitor": "TrainingMonitor().sample() reads memory of machine and GPUs, and"
    " MemoryOptimizer().get_memory_info() that of this process too",
    "MetricsCollector": "a training's numbers are in context.state.metrics, MetricsLogger writes"
    " them, and TrainingMonitor().latest() has the newest with the machine's",
    "OOMHandler": "the loop does the same batch in smaller pieces, as"
    " training.recovery.out_of_memory says; is_out_of_memory(error) of"
    " infrastructure.training.core.error_handlers tells such an error",
    "PerformanceMonitor": "TrainingMonitor has log_training_metrics(metrics) and"
    " get_performance_summary(); monitor.profile_steps records steps with PyTorch's profiler",
    "PerformanceTracker": "TrainingMonitor has log_training_metrics(metrics) and"
    " get_performance_summary(); MetricsLogger writes them down",
    "Profiler": "monitor.profile_steps records steps of a run with PyTorch's profiler, and"
    " MemoryOptimizer().memory_profiler(name) measures the memory of a block",
    "QuantumResourceManager": "quantum.solver names the sampler, its limits and its fallback;"
    " quantum_solve(problem) asks it",
    "RackTrainer": "training.strategy end_to_end has one phase, of the whole rack with one loss;"
    " UnifiedTrainer(config).train_all_layers(dataloader, model_layers) trains so what you give it",
    "ResourceErrorHandler": "training.recovery and quantum.fallback say what is done;"
    " is_device_fault(error) of infrastructure.training.core.error_handlers tells a GPU's error",
    "ResourceManager": "MemoryOptimizer().optimize() frees memory, and find_fastest(config) of"
    " infrastructure.deployment.tuning (temper tune) measures the fastest settings",
    "ResourceMonitor": "TrainingMonitor(thresholds={...}) has start_monitoring() and sample(), and"
    " raises alerts beyond its thresholds",
    "ResourceRecovery": "the loop goes back to its newest good checkpoint, as training.recovery"
    " says, and TrainingDeployment(config).run() goes on with a run that was killed",
    "StackTrainer": "training.strategy progressive has a phase for each stack,"
    " training.end_to_end_scope stackwise trains all of them in each step;"
    " UnifiedTrainer(config).train_all_layers(dataloader, model_layers) trains so what you give it",
    "TrainingErrorHandler": "the loop answers errors as training.recovery says;"
    " is_out_of_memory(error) of infrastructure.training.core.error_handlers tells which kind it"
    " is",
    "TrainingOptimizer": "find_fastest(config) of infrastructure.deployment.tuning (temper"
    " tune) measures batch size, precision, checkpointing and learning rate of a training",
}
