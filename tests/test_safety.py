"""Nothing wrong is reported, nothing is lost, nothing hangs: what went wrong once."""

import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

import minifpt
from minifpt import cli, fast, tasks
from minifpt.experiments import compare, pretrain
from minifpt.files import cache_folder, data, runs, weights
from minifpt.trunks import convert
from minifpt.trunks.names import TrunkSpec

TINY = dict(n_layer=1, n_head=2, n_embd=8, n_positions=12, vocab_size=256)
QUICK = dict(steps=2, batch_size=2, lr=1e-2, eval_every=2, test_examples=4)
ROOT = Path(__file__).resolve().parent.parent


def tiny(path, seed=0, model=minifpt.GPT2):
    """A weight file of a small trunk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    model(minifpt.GPT2Config(**TINY, dropout=0.0), seed=seed).save(path, np.float32)
    return str(path)


def fpt(task, seed=0):
    trunk = minifpt.GPT2(minifpt.GPT2Config(**TINY, dropout=0.0), seed=seed)
    return minifpt.FPT(trunk, task.input_dim, task.output_dim, task.output_tokens)


def grid(out, models, **options):
    return compare.grid(out, ["bit-xor"], models, [0], options=QUICK | options,
                        progress=False).results


def one_line(capsys):
    """What a failed command printed: one line."""
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith("minifpt"), err
    return err


def command(*args, **options):
    """``minifpt ARGS`` in a process of its own."""
    env = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    return subprocess.run([sys.executable, "-m", "minifpt", *map(str, args)], env=env, timeout=120,
                          capture_output=True, **options)


# --------------------------------------------------------- whose result is it


def test_each_trunk_gets_its_own_result(tmp_path):
    a, b = tiny(tmp_path / "a" / "w.npz"), tiny(tmp_path / "b" / "w.npz", seed=1)
    models = [a, b, f"statistics:{a}"]
    results = grid(tmp_path / "out", models)["bit-xor"]
    assert len(results) == 3 and set(results) == {a, b, "statistics"}
    losses = [runs_[0][-1]["test_loss"] for runs_ in results.values()]
    assert len(set(losses)) == 3
    again = grid(tmp_path / "out", models)["bit-xor"]
    assert [r[0][-1]["test_loss"] for r in again.values()] == losses


@pytest.mark.parametrize("names", [
    ("gpt-2.5", "gpt-2.7"), ("./w.npz", "statistics:./w.npz"), ("a/w.npz", "b/w.npz"),
    ("a/w", "a-w"), ("random", "random:gpt2")])
def test_no_two_models_share_a_folder(names):
    assert len({TrunkSpec.parse(name).folder for name in names}) == len(names)
    assert not any(TrunkSpec.parse(name).folder.startswith((".", "/")) for name in names)


def test_replaced_weights_are_noticed(tmp_path):
    path = tiny(tmp_path / "w.npz")
    grid(tmp_path / "out", [path])
    tiny(tmp_path / "w.npz", seed=1)
    with pytest.raises(ValueError, match="^[^\n]*the run has trunk_crc = [^\n]*$"):
        grid(tmp_path / "out", [path])


def test_other_settings_are_noticed(tmp_path):
    grid(tmp_path / "out", ["random"])
    with pytest.raises(ValueError, match="the run has lr = 0.01, not 0.02"):
        grid(tmp_path / "out", ["random"], lr=2e-2)


def idx(path, array, level=9):
    head = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes(), level))


def digits(folder, seed=0):
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    for stem, n in (("train", 40), ("t10k", 20)):
        idx(folder / f"{stem}-images-idx3-ubyte.gz", rng.integers(0, 255, (n, 28, 28), np.uint8))
        idx(folder / f"{stem}-labels-idx1-ubyte.gz", rng.integers(0, 10, n).astype(np.uint8))
    return folder


def replace_labels(folder):
    labels = np.random.default_rng(9).integers(0, 10, 40).astype(np.uint8)
    idx(folder / "train-labels-idx1-ubyte.gz", labels)


def test_replaced_labels_are_noticed(tmp_path):
    folder = digits(tmp_path / "mnist")
    trunk = minifpt.GPT2Config(**TINY | {"n_positions": 49}, dropout=0.0)
    minifpt.GPT2(trunk).save(tmp_path / "w.npz")

    def table():
        return compare.grid(tmp_path / "out", ["mnist"], [str(tmp_path / "w.npz")], [0],
                            task_options={"data": str(folder)}, options=QUICK, progress=False)
    table()
    replace_labels(folder)
    with pytest.raises(ValueError, match="^[^\n]*the run has data_crc = [^\n]*$"):
        table()


# ----------------------------------------------------------- what resume takes


def test_resume_refuses_another_runs_checkpoint(tmp_path):
    task = tasks.get("bit-xor", n=2)
    for name, seed, lr in (("a", 0, 1e-2), ("b", 1, 1e-2), ("c", 0, 1e-3)):
        minifpt.train(fpt(task), task, **QUICK | {"lr": lr}, seed=seed, out=tmp_path / name,
                      progress=False)
    for other, what in (("b", "seed = 1, not 0"), ("c", "lr = 0.001, not 0.01")):
        there = (tmp_path / "a" / "checkpoint.npz").read_bytes()
        (tmp_path / "a" / "checkpoint.npz").write_bytes(
            (tmp_path / other / "checkpoint.npz").read_bytes())
        with pytest.raises(ValueError, match=f"^[^\n]*written by a run with {what}$"):
            minifpt.train(fpt(task), task, **QUICK, seed=0, out=tmp_path / "a", progress=False,
                          resume=True)
        (tmp_path / "a" / "checkpoint.npz").write_bytes(there)


def test_resume_refuses_replaced_labels(tmp_path):
    folder = digits(tmp_path / "mnist")
    trunk = minifpt.GPT2Config(**TINY | {"n_positions": 49}, dropout=0.0)
    minifpt.GPT2(trunk).save(tmp_path / "w.npz")
    args = ["train", "mnist", "--model", tmp_path / "w.npz", "--data", folder, "--out",
            tmp_path / "run", "--batch-size", 2]
    assert cli.main([*args, "--steps", 2, "--schedule", "constant"]) == 0
    replace_labels(folder)
    assert cli.main([*args, "--steps", 4, "--schedule", "constant", "--resume"]) == 2


def test_resume_refuses_replaced_text(tmp_path):
    (tmp_path / "book.txt").write_text("It was a dark and stormy night. " * 400)

    def train(resume):
        task = tasks.Text(tmp_path / "book.txt", tokens=8)
        model = minifpt.LanguageModel(minifpt.GPT2Config(**TINY, dropout=0.0))
        minifpt.train(model, task, 2, 2, out=tmp_path / "run", eval_every=2, test_examples=4,
                      progress=False, resume=resume)
    train(False)
    train(True)
    (tmp_path / "book.txt").write_text("It was a bright and quiet morning. " * 400)
    with pytest.raises(ValueError, match="^[^\n]*the run has data_crc = [^\n]*$"):
        train(True)


def test_resume_refuses_replaced_weights_when_all_is_trained(tmp_path, capsys):
    path = tiny(tmp_path / "w.npz")
    args = ["train", "bit-xor", "--model", path, "--freeze", "full", "--out", tmp_path / "run"]
    assert cli.main([*args, "--steps", 2]) == 0
    tiny(tmp_path / "w.npz", seed=1)
    capsys.readouterr()
    assert cli.main([*args, "--steps", 4, "--resume"]) == 2
    assert "trunk_crc" in one_line(capsys)


# ------------------------------------------------------------- what was there


def test_pretrain_and_convert_overwrite_nothing(tmp_path, capsys):
    mine = tmp_path / "mine.npz"
    mine.write_bytes(b"mine")
    with pytest.raises(ValueError, match="is there already: choose another --out"):
        pretrain.pretrain("bits", mine, steps=1, progress=False)
    source = ROOT / "tests" / "golden" / "plain"
    with pytest.raises(ValueError, match="is there already: choose another --out"):
        convert.convert(source, mine, progress=False)
    assert mine.read_bytes() == b"mine" and os.listdir(tmp_path) == ["mine.npz"]
    (tmp_path / "folder.npz").mkdir()                     # refused before, not after, training
    assert cli.main(["pretrain", "bits", "--out", tmp_path / "folder.npz", "--steps", 10 ** 9]) == 2
    assert "is there already" in one_line(capsys)


@pytest.mark.parametrize("name", ["metrics.csv", "checkpoint.npz", "curves.png"])
def test_train_overwrites_nothing(tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    task = tasks.get("bit-xor", n=2)
    with pytest.raises(ValueError, match=f"^[^\n]*already holds {name}: [^\n]*$"):
        minifpt.train(fpt(task), task, 2, out=tmp_path, progress=False)
    assert (tmp_path / name).read_bytes() == b"mine" and os.listdir(tmp_path) == [name]


@pytest.mark.skipif(sys.platform == "win32", reason="folders are not locked there")
def test_a_second_writer_is_refused(tmp_path):
    task = tasks.get("bit-xor", n=2)
    with runs.locked(tmp_path / "run"):
        with pytest.raises(ValueError, match="^[^\n]*another run is writing there$"):
            minifpt.train(fpt(task), task, 2, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()                # nothing was written into it
    minifpt.train(fpt(task), task, 2, out=tmp_path / "run", progress=False)


def test_a_killed_writer_leaves_nothing_for_good(tmp_path):
    task = tasks.get("bit-xor", n=2)
    minifpt.train(fpt(task), task, 2, out=tmp_path, progress=False)
    (tmp_path / ".checkpoint.npz.12345").write_bytes(b"half")
    minifpt.train(fpt(task), task, 3, out=tmp_path, progress=False, resume=True)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint.npz", "config.json", "curves.png",
                                            "metrics.csv"]


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to catch there")
def test_sigterm_saves(tmp_path):
    run = subprocess.Popen(
        [sys.executable, "-m", "minifpt", "train", "bit-xor", "--out", str(tmp_path / "run"),
         "--steps", "1000000"], env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE, text=True)
    for _ in range(1200):
        if (tmp_path / "run" / "metrics.csv").exists():
            break
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    err = run.communicate(timeout=60)[1]
    assert run.returncode == 130 and "go on from" in err
    state = json.loads(str(np.load(tmp_path / "run" / "checkpoint.npz")["state"]))
    assert state["step"] >= 100


# ---------------------------------------------------------------- bad numbers


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("model", [minifpt.GPT2, minifpt.LanguageModel])
def test_weights_that_are_no_numbers_are_refused(tmp_path, bad, model):
    tiny(tmp_path / "w.npz", model=model)
    arrays = dict(np.load(tmp_path / "w.npz"))
    arrays["h.0.mlp.c_fc.weight"][3, 5] = bad
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(ValueError, match="^[^\n]*'h.0.mlp.c_fc.weight' holds a NaN or an inf"):
        model.from_pretrained(tmp_path / "w.npz")
    trunk = model(minifpt.GPT2Config(**TINY))
    trunk.named_parameters().__next__()[1].data[0] = bad
    with pytest.raises(ValueError, match="^[^\n]*holds a NaN or an infinity$"):
        trunk.save(tmp_path / "x.npz")
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("model, message", [
    ("random+h.99.*=random", "matches no parameter"), ("random+input=random", "names no parameter"),
    ("random+full=random", "names no parameter")])
def test_a_mask_that_names_nothing_is_refused(model, message, capsys):
    assert cli.main(["summary", "bit-xor", "--model", model]) == 2
    assert message in one_line(capsys)


@pytest.mark.parametrize("option, value", [
    ("clip", -1), ("clip", np.nan), ("clip", 0), ("weight_decay", -1), ("weight_decay", np.nan),
    ("steps", 2.5), ("steps", np.nan), ("steps", 0), ("lr", np.inf), ("batch_size", 2.5),
    ("eval_every", 0), ("seed", -1), ("warmup", -1), ("warmup", 1.5)])
def test_train_refuses_what_is_no_number_for_it(option, value, tmp_path):
    task = tasks.get("bit-xor", n=2)
    options = {"steps": 2, "progress": False, "out": tmp_path / "run", option: value}
    with pytest.raises(ValueError, match=f"^train: {option} [^\n]*$"):
        minifpt.train(fpt(task), task, **options)
    assert not (tmp_path / "run").exists()


def test_train_takes_numpys_numbers(tmp_path):
    task = tasks.get("bit-xor", n=2)
    minifpt.train(fpt(task), task, steps=np.int64(2), lr=np.float32(1e-2), batch_size=np.int32(2),
                  seed=np.int64(3), clip=np.float64(1), out=tmp_path / "run", progress=False)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["steps"] == 2


@pytest.mark.parametrize("dtype", [np.int32, np.float16, np.complex64, "bool"])
def test_only_float32_and_float64(dtype, tmp_path):
    with pytest.raises(ValueError, match="^GPT2: dtype is [^\n]*expected float32 or float64$"):
        minifpt.GPT2.from_pretrained(tiny(tmp_path / "w.npz"), dtype=dtype)


def test_operations_refuse_what_would_broadcast():
    x = np.zeros((2, 3))
    with pytest.raises(ValueError, match="^linear: [^\n]*expected x"):
        fast.linear(x, np.zeros((3, 4)), np.zeros(1))
    with pytest.raises(ValueError, match="^layer_norm: [^\n]*expected x"):
        fast.layer_norm(x, np.ones(3), np.zeros(1))
    with pytest.raises(ValueError, match="^embedding: ids have dtype bool"):
        fast.embedding(np.array([True, False]), np.zeros((2, 3)))


@pytest.mark.parametrize("change", ["surplus", "hidden"])
def test_surplus_arrays_are_refused(tmp_path, change):
    tiny(tmp_path / "w.npz")
    arrays = dict(np.load(tmp_path / "w.npz"))
    arrays["more" if change == "surplus" else "h.1.ln_1.weight"] = np.zeros(8, np.float32)
    np.savez(tmp_path / "w.npz", **arrays)
    with pytest.raises(ValueError, match="^[^\n]*also holds '(more|h.1.ln_1.weight)'[^\n]*$"):
        minifpt.GPT2.from_pretrained(tmp_path / "w.npz")


@pytest.mark.parametrize("T", [5, 100])
@pytest.mark.parametrize("size", [1e18, 1e19, 3e38])
def test_attention_of_huge_numbers_is_finite(T, size):
    qkv = np.random.default_rng(0).uniform(-1, 1, (2, T, 24)).astype(np.float32) * np.float32(size)
    y, _ = fast.attention(qkv, 2)
    assert np.isfinite(y).all() and np.abs(y).max() > 0.1 * size


# ----------------------------------------------------------------------- bombs


def bomb(path, change_config=None, config=None, **arrays):
    """A weight file, deflated, with something of it replaced."""
    tiny(path)
    held = dict(np.load(path))
    settings = json.loads(str(held.pop("config"))) | (change_config or {})
    text = json.dumps(settings) if config is None else config
    np.savez_compressed(path, config=np.array(text), **held | arrays)
    return path


@pytest.mark.parametrize("change", [
    {"n_layer": 10 ** 9}, {"n_embd": 10 ** 6, "n_head": 1}, {"n_positions": 10 ** 12},
    {"vocab_size": 10 ** 15}, {"n_layer": {}}, {"n_embd": [8]}, {"dropout": "x"}])
def test_a_config_cannot_ask_for_more_than_the_file_has(tmp_path, change):
    path = bomb(tmp_path / "w.npz", change, **{"wte.weight": np.zeros((256, 8), np.float32)})
    start = time.perf_counter()
    for model in (minifpt.GPT2, minifpt.LanguageModel):
        if "vocab_size" in change and model is minifpt.GPT2:
            continue                                      # a trunk has no use for it
        with pytest.raises(ValueError, match="^[^\n]*$"):
            model.from_pretrained(path)
    assert time.perf_counter() - start < 5


def test_a_long_config_is_not_read(tmp_path):
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.array(" " * (1 << 20)))
        archive.writestr("config.npy", buffer.getvalue())
    with pytest.raises(ValueError, match="^[^\n]*its config has 4,194,[0-9]* bytes[^\n]*$"):
        weights.load(path)


def test_shapes_are_compared_before_numbers_are_read(tmp_path, monkeypatch):
    path = bomb(tmp_path / "w.npz", **{"ln_f.weight": np.zeros(10 ** 7, np.float32)})
    assert path.stat().st_size < 10 ** 5
    monkeypatch.setattr(weights.Tensor, "blocks", None)
    with pytest.raises(ValueError, match="'ln_f.weight' has shape \\(10000000,\\)"):
        minifpt.GPT2.from_pretrained(path)


@pytest.mark.parametrize("shape", [(60000, 28, 28), (2 ** 31, 28, 28), (1, 28, 28)])
def test_an_idx_file_unpacks_to_what_its_header_says_and_no_more(tmp_path, shape):
    import tracemalloc
    head = bytes([0, 0, 8, 3]) + b"".join(n.to_bytes(4, "big") for n in shape)
    with gzip.open(tmp_path / "x.gz", "wb", 9) as f:
        f.write(head)
        for _ in range(100):
            f.write(bytes(10 ** 6))
    tracemalloc.start()
    with pytest.raises(ValueError, match="^[^\n]*damaged( or cut short)?$"):
        data.read_idx(tmp_path / "x.gz", 3)
    assert tracemalloc.get_traced_memory()[1] < 2.1e8
    tracemalloc.stop()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_no_file(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    assert cli.main(["perplexity", tmp_path / "pipe"]) == 2
    assert "there is no such file" in one_line(capsys)
    assert cli.main(["generate", "--model", tmp_path / "pipe"]) == 2
    one_line(capsys)


# --------------------------------------------------------- ordinary situations


def test_without_a_home_folder(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert cache_folder().name == "minifpt"
    assert cli.main(["info"]) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="a shell's way of closing")
@pytest.mark.parametrize("stream", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(stream, tmp_path):
    line = f"{sys.executable} -m minifpt info {stream}"
    run = subprocess.run(line, shell=True, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60,
                         capture_output=True, text=True, cwd=tmp_path)
    assert run.returncode == 0 and "Traceback" not in run.stderr + run.stdout


@pytest.mark.parametrize("module", ["tqdm", "argparse"])
def test_ctrl_c_while_it_starts(module, tmp_path):
    (tmp_path / f"{module}.py").write_text("raise KeyboardInterrupt")
    run = command("train", env={"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert run.returncode == 130 and run.stderr.decode() == "minifpt: interrupted\n"
    # In a program of someone else's it is raised.
    host = [sys.executable, "-c", "import minifpt.cli, minifpt.training"]
    run = subprocess.run(host, capture_output=True, timeout=60, env=os.environ | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])})
    assert b"KeyboardInterrupt" in run.stderr


def test_a_terminal_that_spells_little(tmp_path):
    for encoding in ("cp1252", "ascii"):
        run = command("generate", "Caf\u00e9 \u2013 ", "--tokens", 5,
                      env={"PYTHONIOENCODING": encoding})
        assert run.returncode == 0 and run.stderr == b""
    code = ("from minifpt.exercises import check\n"
            "check('softmax_with_temperature', lambda *a: None)\ncheck('bias_gradient', ...)")
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "cp1252"}
    run = subprocess.run([sys.executable, "-c", code], env=env, timeout=60, capture_output=True)
    assert b"UnicodeEncodeError" not in run.stderr


def test_lessons_import_nothing_from_their_folder(tmp_path, monkeypatch):
    pytest.importorskip("jupyterlab")
    (tmp_path / "jupyterlab.py").write_text("open('ran', 'w')")
    (tmp_path / "random.py").write_text("open('ran', 'w')")
    seen = []
    monkeypatch.setattr(subprocess, "call", lambda args, **kw: seen.append((args, kw)) or 0)
    assert cli.main(["lessons", tmp_path]) == 0
    (args, kw), = seen
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([*args[:4], "--version"], cwd=kw["cwd"], env=env, timeout=60, check=True)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's /proc")
def test_memory_goes_back_to_the_system():
    code = """
import numpy as np
from minifpt.machine import kept_memory
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6
before = resident()
with kept_memory:
    arrays = [np.ones(10 ** 6) for _ in range(40)]
    del arrays
print(resident() - before)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                         env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)
    assert float(run.stdout) < 50


def test_fonts_that_every_matplotlib_has():
    from minifpt.tasks.images import FONTS
    newer = {"cmti10"}                                    # since Matplotlib 3.11
    assert not newer & {*FONTS["train"], *FONTS["test"]}
