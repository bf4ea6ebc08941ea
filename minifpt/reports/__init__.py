"""Run reports, attention maps."""
