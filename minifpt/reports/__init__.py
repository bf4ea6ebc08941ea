"""Run reports, attention maps, plots."""
