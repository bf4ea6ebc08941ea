"""Damaged files: each is read and right, or is refused in one line that names it.

``MINIFPT_EXAMPLES=1000 pytest tests/test_fuzz.py`` tries more of them.
"""

import copy
import io
import json
import pickle
import shutil
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_convert import pack
from test_convert import write as write_checkpoint

import minifpt
from minifpt import tasks
from minifpt.experiments import runs as run_folders
from minifpt.experiments.runs import read_config
from minifpt.experiments.runs import read_run as read_back
from minifpt.files import runs

RUN = dict(steps=2, batch_size=2, eval_every=1, test_examples=2, progress=False)
WRONG = st.sampled_from([None, True, 0, -1, 1.5, float("nan"), float("inf"), 10 ** 30, 10 ** 400,
                         "", "x", "a\nb", "x" * 10_000, "\ud800", "../x", [], {}, [1, 2], [[]]])


class Bomb:
    """Unpickling this fails the test: loaded files must not run code."""

    def __reduce__(self):
        return pytest.fail, ("a file ran code while it was loaded",)


# ------------------------------------------------------------------------------- damage


def of_bytes(draw, raw):
    """Return bytes of which some are overwritten, cut out, repeated or put in."""
    for _ in range(draw(st.integers(1, 3))):
        near = min(64, len(raw))                          # heads and tails tell the most
        at = draw(st.one_of(st.integers(0, near), st.integers(len(raw) - near, len(raw)),
                            st.integers(0, len(raw))))
        size = draw(st.sampled_from([0, 1, 2, 4, 8, 100, len(raw)]))
        new = draw(st.one_of(st.just(raw[:size]), st.binary(max_size=8)))
        raw = raw[:at] + new + raw[at + size:]
    return raw


def of_json(draw, raw):
    """Return JSON with another value or name, or without one."""
    top = [json.loads(raw)]
    for _ in range(draw(st.integers(1, 2))):
        places = [*all_places(top)]
        box, key = places[draw(st.integers(0, len(places) - 1))]
        how = draw(st.sampled_from(["replace", "drop", "rename", "nest"]))
        if how == "drop" and box is not top:
            del box[key]
        elif how == "rename" and isinstance(box, dict):
            box[draw(st.sampled_from(["", "a\nb", "x" * 3000, "config"]))] = box.pop(key)
        else:
            box[key] = [box[key]] if how == "nest" else copy.deepcopy(draw(WRONG))
    return json.dumps(top[0]).encode()


def all_places(value):
    """Yield (container, key) of everything within a value of JSON."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from all_places(value[key])


def of_npz(draw, raw):
    """Return a zip file of arrays, with right sums, in which one array is another or lies."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    name = draw(st.sampled_from([*files, "config.npy", "state.npy"]).filter(files.__contains__))
    array, buffer = np.load(io.BytesIO(files[name]), allow_pickle=False), io.BytesIO()
    how = draw(st.sampled_from(["bytes", "array", "drop", "lie", "json"]))
    if how == "json" and array.dtype.kind == "U":
        array = np.array(of_json(draw, str(array).encode()).decode())
    elif how == "array":
        array = draw(st.sampled_from([
            array.reshape(-1), array[None], np.zeros(()), np.array(["x"]), np.array([Bomb()]),
            np.zeros(array.shape, "f8"), np.zeros(array.shape, "i4"), np.full(array.shape, np.nan),
            np.zeros(array.shape, "M8[s]"), np.zeros(array.shape, "f4,f4")]))
    np.lib.format.write_array(buffer, array, allow_pickle=True)
    files[name] = buffer.getvalue()
    if how == "bytes":
        files[name] = of_bytes(draw, files[name])
    elif how == "drop":
        del files[name]
    elif how == "lie":                                    # its head tells of another array
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {
            "shape": (draw(st.sampled_from([0, 2 ** 31, 2 ** 62])),), "fortran_order": False,
            "descr": draw(st.sampled_from(["<f4", "|O", "<U99999999"]))})
        files[name] = head.getvalue() + pickle.dumps(Bomb())
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        for name, npy in files.items():
            archive.writestr(name, npy)
    return buffer.getvalue()


def of_safetensors(draw, raw):
    """Return a safetensors file whose header is damaged as JSON; its length fits."""
    size = int.from_bytes(raw[:8], "little")
    return pack(of_json(draw, raw[8:8 + size]), raw[8 + size:])


# ------------------------------------------------------------------------------ formats


def read_npz(folder):
    minifpt.GPT2.from_pretrained(folder / "w.npz")
    return finite(minifpt.LanguageModel.from_pretrained(folder / "w.npz"))


def read_folder(folder):
    return finite(minifpt.trunks.get(str(folder)))


def finite(model):
    assert all(np.isfinite(p.data).all() for p in model.parameters())


def make_run(folder):
    run_folders.run(tasks.get("bit-xor", n=2), "random:1x2x8", folder, freeze="attn,mlp,ln,pos",
                source="bit-xor", **RUN)


def read_run(folder):
    """As reports and going on read it: all, or nothing is changed."""
    if '"random:1x2x8"' in (folder / "config.json").read_text("utf-8", "replace"):
        finite(read_back(folder)[1].model)                # other names may be large models
    read_config(folder)
    assert all({*row} == {*runs.COLUMNS} for row in runs.History.load(folder / "metrics.csv"))


# {name: (make, read, {damaged file: the ways})}
FORMATS = {
    "npz": (lambda folder: minifpt.LanguageModel(minifpt.GPT2Config(
        1, 2, 8, 8, 20), seed=0).save(folder / "w.npz"), read_npz, {"w.npz": [of_npz, of_bytes]}),
    "safetensors": (write_checkpoint, read_folder, {
        "model.safetensors": [of_safetensors, of_bytes], "config.json": [of_json, of_bytes]}),
    "run": (make_run, read_run, {"checkpoint.npz": [of_npz, of_bytes], "config.json": [of_json],
                                 "metrics.csv": [of_bytes]})}


@pytest.fixture(scope="module")
def valid(tmp_path_factory):
    """Return ``folder(name)``: a folder with the valid files of a format, made once."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name)
            FORMATS[name][0](made[name])
            FORMATS[name][1](made[name])                  # it is read
        return made[name]
    return folder


@pytest.mark.parametrize("name, file, how", [
    (name, file, how) for name, (_, _, files) in FORMATS.items()
    for file, ways in files.items() for how in ways],
    ids=lambda x: getattr(x, "__name__", x))
@given(data=st.data())
def test_a_damaged_file_is_read_right_or_refused_in_one_line(valid, name, file, how, data):
    source, read = valid(name), FORMATS[name][1]
    folder = source.with_name(f"{name}-damaged")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    (folder / file).write_bytes(how(data.draw, (source / file).read_bytes()))
    try:
        with np.errstate(all="ignore"):
            read(folder)
    except (ValueError, OSError) as e:
        assert str(folder) in str(e) and "\n" not in str(e) and len(str(e)) < 1000
        assert "Unable to allocate" not in str(e)
