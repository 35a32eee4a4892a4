"""Training loop, batches, optimisers, CUDA graphs, data parallelism and planning; independent of tasks and files."""
