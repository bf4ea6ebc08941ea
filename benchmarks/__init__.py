"""What the README's figures were measured with: ``python -m benchmarks.step``, ..."""
