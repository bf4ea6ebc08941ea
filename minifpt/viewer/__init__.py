"""Pages that run in the browser, and how they store arrays and are filled."""

import base64
import importlib
import json
import re
from pathlib import Path


def encoded(a):
    """Return an array's bytes as base64."""
    return base64.b64encode(a.tobytes()).decode()


def to_json(data):
    """Return JSON that cannot end the script element around it."""
    try:
        text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise ValueError("numbers are not finite: try smaller weights or learning rate") from None
    return text.replace("<", "\\u003c")


def read(name):
    """Return the text of a file in this folder."""
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def fill(name, parts):
    """Return a page of this folder, with a part in place of each ``<!--NAME-->``, in one pass."""
    return re.sub("<!--([A-Z]+)-->", lambda mark: parts[mark[1]], read(name))


def __getattr__(name):                                    # loaded when it is used
    if name == "tour":
        return importlib.import_module(".live", __name__).LivePage
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
