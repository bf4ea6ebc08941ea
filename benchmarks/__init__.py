"""What the figures in RESULTS.md were measured with: ``python -m benchmarks.step``, ..."""
