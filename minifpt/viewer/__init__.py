"""Pages that run in the browser."""
