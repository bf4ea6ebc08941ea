"""Nothing wrong is reported, nothing is lost, nothing hangs: what went wrong once."""

import gzip
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from test_data import write_mnist

import minifpt
from minifpt import cli
from minifpt.experiments import compare
from minifpt.files import cache_folder, weights

QUICK = dict(steps=2, batch_size=2, lr=1e-2, eval_every=2, test_examples=4)
ROOT = Path(__file__).resolve().parent.parent


def command(*args, **options):
    """``minifpt ARGS`` in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run([sys.executable, "-m", "minifpt", *map(str, args)], env=env, timeout=120,
                          capture_output=True, **options)


def test_replaced_labels_are_noticed(tmp_path):
    write_mnist(tmp_path / "mnist")

    def table():
        return compare.grid(tmp_path / "out", ["mnist"], ["random:1x2x8"], [0], progress=False,
                            task_options={"data": str(tmp_path / "mnist")}, options=QUICK)
    table()
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    raw = bytearray(gzip.decompress(labels.read_bytes()))
    raw[8] ^= 1                                           # the first label
    labels.write_bytes(gzip.compress(raw))
    with refused("the run was made with other data: "):
        table()


# ----------------------------------------------------------------------- bombs


def test_a_long_config_is_not_read(tmp_path):
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.array(" " * (1 << 20)))
        archive.writestr("config.npy", buffer.getvalue())
    with pytest.raises(ValueError, match="^[^\n]*its config has 4,194,[0-9]* bytes[^\n]*$"):
        weights.read(path)


def test_shapes_are_compared_before_numbers_are_read(tmp_path, monkeypatch):
    path = tmp_path / "w.npz"                             # deflated, with a large array
    minifpt.GPT2(minifpt.GPT2Config(1, 2, 8, 12, 256), seed=0).save(path, np.float32)
    np.savez_compressed(path, **dict(np.load(path)) | {"ln_f.weight": np.zeros(10 ** 7, "f4")})
    assert path.stat().st_size < 10 ** 5
    monkeypatch.setattr(weights.Tensor, "read", None)
    with pytest.raises(ValueError, match="'ln_f.weight' has shape \\(10000000,\\)"):
        minifpt.GPT2.from_pretrained(path)


# --------------------------------------------------------- ordinary situations


def test_commands_run_without_a_home_folder(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert cache_folder().name == "minifpt"
    assert cli.main(["info"]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's way of closing")
@pytest.mark.parametrize("line, status", [
    ("info >&-", 0), ("info 2>&-", 0), ("info >&- 2>&-", 0),
    ("summary --model nonsense >&- 2>&-", 2)])
def test_commands_run_with_closed_streams(line, status, tmp_path):
    run = subprocess.run(f"{sys.executable} -m minifpt {line}", shell=True, timeout=60,
                         env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True,
                         text=True, cwd=tmp_path)
    assert run.returncode == status and "Traceback" not in run.stderr + run.stdout


@pytest.mark.parametrize("module", ["tqdm", "argparse"])
def test_ctrl_c_while_it_starts_is_one_line(module, tmp_path):
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    run = command("train", env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert run.returncode == 130 and run.stderr.decode() == "minifpt: interrupted\n"
    # In a program of someone else's it is raised.
    host = [sys.executable, "-c", "import minifpt.cli, minifpt.training"]
    run = subprocess.run(host, capture_output=True, timeout=60, env=os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert b"KeyboardInterrupt" in run.stderr


def test_a_terminal_without_unicode_gets_no_error(tmp_path):
    code = ("from minifpt.exercises import check\n"
            "check('softmax_with_temperature', lambda *a: None)\ncheck('bias_gradient', ...)")
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252"}
    run = subprocess.run([sys.executable, "-c", code], env=env, timeout=60, capture_output=True)
    assert b"UnicodeEncodeError" not in run.stderr


def test_lessons_import_nothing_from_their_folder(tmp_path, monkeypatch):
    pytest.importorskip("jupyterlab")
    for name in ("jupyterlab", "random", "json"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')")
    calls = []
    monkeypatch.setattr(subprocess, "call", lambda args, **kw: calls.append((args, kw)) or 0)
    assert cli.main(["lessons", tmp_path]) == 0
    (args, kw), = calls
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    assert args[2:4] == ["-m", "jupyterlab"]              # takes seconds to start: only found here
    code = ("import json, random; from importlib.util import find_spec; "
            "print(find_spec('jupyterlab').origin)")
    run = subprocess.run([*args[:2], "-c", code],
                         cwd=kw["cwd"], env=env, timeout=60, check=True, capture_output=True)
    assert str(tmp_path).encode() not in run.stdout and not (tmp_path / "ran").exists()
