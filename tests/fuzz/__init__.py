"""Long looks at what may go wrong: ``python -m tests.fuzz.kills``."""
