"""Results of long functions of the lessons, which a browser's tab reads instead of running them.

A tab takes about ten times as long as a desktop.  ``python lessons/build.py`` writes the results
into ``lessons/results``.
"""

import ast
import base64
import functools
import inspect
import json
import os
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import numpy as np

from ..files import save_text
from ..fpt import FPT, Recipe
from ..machine import IN_BROWSER
from .lesson import lessons_folder

RUNS = Counter()                                          # {lesson: calls that have run}


def recorded(lesson, live=1):
    """Decorate a function of a lesson, such as ``"00"``, that returns an array, an FPT or a tuple
    of these.

    Calls with the same arguments run once.  In a browser the first ``live`` calls of the lesson
    run, and the others return what is written, unless the function, or one of the notebook's that
    it calls, has changed.
    """
    def decorate(function):
        results, name = {}, f"{lesson}.json"

        @functools.wraps(function)
        def call(*arguments):
            key = json.dumps(arguments)
            if key not in results:
                written = read(lessons_folder() / "results" / name, function) if (
                    IN_BROWSER and RUNS[lesson] >= live) else {}
                RUNS[lesson] += key not in written
                results[key] = decode(written[key]) if key in written else function(*arguments)
                if folder := os.environ.get("MINIFPT_RECORDS"):
                    write(Path(folder) / name, function, results)
            return results[key]
        return call
    return decorate


def sources(function):
    """Return {name: source} of a function and of those of its module that it calls."""
    found, functions = {}, [function]
    while functions:
        called = functions.pop()
        if (inspect.isfunction(called) and called.__module__ == function.__module__
                and called.__name__ not in found):
            found[called.__name__] = inspect.getsource(called)
            functions += [inspect.unwrap(called).__globals__.get(node.id)
                          for node in ast.walk(ast.parse(found[called.__name__]))
                          if isinstance(node, ast.Name)]
    return found


def read(path, function):
    """Return the results of a function that are written, none where its source has changed."""
    written = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    entry = written.get(function.__name__, {"sources": None})
    return entry["results"] if entry["sources"] == sources(function) else {}


def write(path, function, results):
    """Write the results of a function into a file, beside those of others."""
    written = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    written[function.__name__] = {"sources": sources(function), "results": {
        key: encode(result) for key, result in results.items()}}
    path.parent.mkdir(exist_ok=True)
    save_text(path, json.dumps(written, indent=1) + "\n")


def encode(value):
    """Return a result for a JSON file."""
    if isinstance(value, FPT):
        return {"recipe": asdict(value.recipe), "trained": {
            name: encode(p.data) for name, p in value.named_parameters() if p.trainable}}
    if isinstance(value, tuple):
        return {"tuple": [encode(part) for part in value]}
    value = np.asarray(value)
    if value.dtype != np.float32:
        return value.tolist()
    return {"shape": value.shape, "float32": base64.b64encode(value.astype("<f4")).decode()}


def decode(value):
    """Return what :func:`encode` was given."""
    if not isinstance(value, dict):
        return np.array(value)
    if "float32" in value:
        data = np.frombuffer(base64.b64decode(value["float32"]), "<f4")
        return data.astype(np.float32).reshape(value["shape"])
    if "tuple" in value:
        return tuple(decode(part) for part in value["tuple"])
    model = FPT.from_recipe(Recipe(**value["recipe"]))
    for name, parameter in model.named_parameters():
        if name in value["trained"]:
            parameter.data[...] = decode(value["trained"][name])
    return model
