"""Grids of runs, where they run, the paper's tables, plans and pretraining."""
