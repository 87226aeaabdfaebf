"""Targets, building and running kernels, measurement, records, the compiled model."""
