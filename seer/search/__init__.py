"""Sketch rules, search space, cost models and task schedulers."""
