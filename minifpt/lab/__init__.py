"""Experiments: trunks by name, runs and tables, plans, pretraining, conversion."""
