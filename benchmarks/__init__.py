"""Benchmarks: `python -m benchmarks.kernels`, `.models`, `.search`, `.throughput`; each has --help."""
