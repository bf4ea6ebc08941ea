"""Measure the figures in docs/performance.md: ``python -m benchmarks.train`` and so on."""
