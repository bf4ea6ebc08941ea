"""The live page: a frozen transformer that trains in the browser."""

from .page import MODEL, TASKS, LivePage, playground, save

__all__ = ["MODEL", "TASKS", "LivePage", "playground", "save"]
