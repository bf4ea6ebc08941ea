"""Measure the figures in docs/performance.md: ``python -m benchmarks.step`` and so on."""
