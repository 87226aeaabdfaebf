"""Benchmarks: `python -m benchmarks.kernels`, or models, roofline, search, throughput; each has --help."""
