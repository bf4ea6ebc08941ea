"""What Transformers saved: read exactly, converted exactly, refused in one line."""

import json
import os
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from conftest import child, refused

import minifpt
from minifpt import cli
from minifpt import functional as F
from minifpt.experiments.convert import import_weights as convert
from minifpt.files import data, weights

GOLDEN = Path(__file__).parent / "golden"
FOLDERS = ["plain", "sharded", "trunk-bfloat16", "float16", "gelu", "relu"]
CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "uint8": "U8", "int64": "I64"}


def safetensors(arrays):
    """The bytes of a safetensors file, written by hand."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, a in arrays.items():
        raw = a.tobytes()
        header[name] = {"dtype": CODES[a.dtype.name], "shape": a.shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    return pack(header, data)


def pack(header, data):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


CONFIG = dict(n_layer=2, n_head=2, n_embd=4, n_positions=5, vocab_size=7)


def arrays(seed=0, dtype=np.float32, **changes):
    rng = np.random.default_rng(seed)
    model = minifpt.LanguageModel(minifpt.GPT2Config(**CONFIG | changes), seed=None)
    return {name.removeprefix("trunk."): rng.standard_normal(p.data.shape).astype(dtype)
            for name, p in model.named_parameters()}


def write(folder, tensors=None, **config):
    """A folder as save_pretrained writes it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2"} | CONFIG | config))
    (folder / "model.safetensors").write_bytes(safetensors(tensors or arrays()))
    return folder


# ---------------------------------------------------------------------------- golden


def close(got, want, tolerance, name):
    """Largest difference relative to the largest entry."""
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error <= tolerance, f"{name}: relative error {error:.1e}"


@pytest.mark.parametrize("dtype, tolerance", [(np.float32, 1e-5), (np.float64, 1e-9)])
@pytest.mark.parametrize("name", FOLDERS)
def test_outputs_and_gradients_equal_those_of_transformers(name, dtype, tolerance):
    """Hidden states, logits, loss and every gradient are those of Transformers."""
    expected = np.load(GOLDEN / name / "expected.npz")
    lm = minifpt.LanguageModel.from_pretrained(GOLDEN / name, dtype=dtype)
    assert all(p.data.dtype == dtype for p in lm.parameters())
    ids = expected["ids"]
    trunk = minifpt.GPT2.from_pretrained(GOLDEN / name, dtype=dtype)
    for model in (lm.trunk, trunk):
        hidden, _ = model.forward(lm.wte.forward(ids)[0])
        close(hidden, expected["hidden"], tolerance, "hidden")
    logits, cache = lm.forward(ids)
    close(logits, expected["logits"], tolerance, "forward")
    close(lm.logits(ids), expected["logits"], tolerance, "logits")
    loss, c = F.cross_entropy(logits[:, :-1], ids[:, 1:])
    close(loss, expected["loss"], tolerance, "loss")
    dlogits = np.zeros_like(logits)
    dlogits[:, :-1] = F.cross_entropy_backward(1.0, c)
    lm.backward(dlogits, cache)
    grads = {name.removeprefix("trunk."): p.grad for name, p in lm.named_parameters()}
    assert set(grads) == {key.removeprefix("grad.") for key in expected if key.startswith("grad.")}
    for key, grad in grads.items():
        assert grad.dtype == dtype
        close(grad, expected[f"grad.{key}"], tolerance, key)


def test_configs_are_read_as_transformers_saved_them():
    plain, trunk = (minifpt.GPT2.from_pretrained(GOLDEN / name).config
                    for name in ("plain", "trunk-bfloat16"))
    assert plain == minifpt.GPT2Config(2, 2, 16, 12, 31, 0.1, 1e-5) and trunk.dropout == 0


@pytest.mark.parametrize("name", FOLDERS)
def test_convert_is_exact(name, tmp_path):
    direct = minifpt.LanguageModel.from_pretrained(GOLDEN / name)
    (tmp_path / "float16").mkdir()
    for dtype, out, path in (("float32", "w", "w.npz"),
                             (np.float16, "float16", f"float16/{name}.npz")):
        assert convert(GOLDEN / name, tmp_path / out, dtype) == tmp_path / path
        with np.load(tmp_path / path, allow_pickle=False) as f:
            assert {f[n].dtype for n in f if n != "config"} == {np.dtype(dtype)}
            assert json.loads(str(f["config"]))["source"] == name
        again = minifpt.LanguageModel.from_pretrained(tmp_path / path)
        assert again.config == direct.config
        for (key, p), q in zip(direct.named_parameters(), again.parameters(), strict=True):
            np.testing.assert_array_equal(q.data, p.data.astype(dtype), key)


# --------------------------------------------------------------------------- sources


def check(trunk, want):
    for name, p in trunk.named_parameters():
        np.testing.assert_array_equal(p.data, want[name], name)
        assert p.data.flags.writeable and p.trainable


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("head", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_names_are_read_with_every_prefix(tmp_path, prefix, head, dtype):
    """With the prefix or without, with the head, with the masks of old versions."""
    want = arrays(dtype=dtype)
    tensors = {prefix + name: a for name, a in want.items()}
    for i in range(2):
        tensors[f"{prefix}h.{i}.attn.bias"] = np.ones((1, 1, 5, 5), np.uint8)
        tensors[f"{prefix}h.{i}.attn.masked_bias"] = np.array(-1e4, np.float32)
    if head:
        tensors["lm_head.weight"] = want["wte.weight"]
    folder = write(tmp_path / "a", tensors)
    for path in (folder, str(folder), folder / "model.safetensors"):
        check(minifpt.GPT2.from_pretrained(path, dtype=np.float64), want)
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    check(minifpt.GPT2.from_pretrained(folder / "other.safetensors", dtype=np.float64), want)


HEAD = {"lm_head.weight": arrays()["wte.weight"]}
OTHER_HEAD = {"lm_head.weight": arrays(1)["wte.weight"]}


@pytest.mark.parametrize("lacks, head, tied, message", [
    ("wte.weight", HEAD, True, None), ("", HEAD, False, None),            # it is the table
    ("", {"score.weight": np.ones((2, 4), np.float32)}, True, None),
    *[("", OTHER_HEAD, tied, None) for tied in (True, False)],              # it is read as a trunk
    *[(name, {}, True, f"/a: lacks '{name}'")
      for name in ("wpe.weight", "ln_f.bias", "h.1.mlp.c_fc.bias")]])
def test_heads_that_change_nothing_are_taken_and_missing_tensors_named(tmp_path, lacks, head, tied,
                                                                       message):
    tensors = {f"transformer.{n}": a for n, a in arrays().items() if n != lacks}
    folder = write(tmp_path / "a", tensors | head, tie_word_embeddings=tied)
    if message is None:
        check(minifpt.GPT2.from_pretrained(folder), arrays())
    else:
        with refused(message):
            minifpt.GPT2.from_pretrained(folder)


def test_a_model_with_a_head_of_its_own_is_no_language_model(tmp_path):
    headless = arrays()
    del headless["wte.weight"]
    for tensors, tied in ((arrays() | OTHER_HEAD, True), (arrays() | OTHER_HEAD, False),
                          (arrays(), False), (headless | HEAD, False)):
        with refused("lacks 'wte.weight': it is a trunk"):
            minifpt.LanguageModel.from_pretrained(
                write(tmp_path / "a", tensors, tie_word_embeddings=tied))


def test_numbers_that_become_0_in_float16_are_counted(tmp_path, capsys):
    tensors = arrays()
    tensors["wpe.weight"][0, :3] = 1e-9, -1e-9, 0
    folder = write(tmp_path / "a", tensors)
    path = convert(folder, tmp_path / "b", "float16")
    minifpt.LanguageModel.from_pretrained(folder).save(tmp_path / "c", np.float16)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "became 0" in line] == [
        f"minifpt: {file}: 2 numbers are so small that they became 0 in float16: float32 keeps them"
        for file in (path, tmp_path / "c")]
    convert(folder, tmp_path / "d", "float32")
    assert "became 0" not in capsys.readouterr().err


# ---------------------------------------------------------------------------- config


@pytest.mark.parametrize("changes, message", [
    (dict(activation_function="swish"),
     "activation_function is 'swish', expected one of gelu_new, .*relu"),
    (dict(activation_function=["relu"]), r"activation_function is \['relu'\], expected one of"),
    (dict(n_inner=8), "n_inner is 8"),
    (dict(scale_attn_weights=False), "scale_attn_weights is False"),
    (dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx is True"),
    (dict(add_cross_attention=True), "add_cross_attention is True"),
    (dict(pruned_heads={"0": [1]}), "pruned_heads is"),
    (dict(n_layer=None), "n_layer (is|must be a whole number.*got) None"),
    (dict(n_layer=2.0), "n_layer (is|must be a whole number.*got) 2.0"),
    (dict(n_embd=0), "n_embd (is|must be a whole number.*got) 0"),
    (dict(n_head=3), "n_embd 4 is not divisible by n_head 3"),
    (dict(layer_norm_epsilon=0), "layer_norm_epsilon is 0"),
    (dict(layer_norm_epsilon="1"), "bad config"),
    (dict(resid_pdrop=1.5, attn_pdrop=1.5, embd_pdrop=1.5), "dropout is 1.5"),
    (dict(attn_pdrop=0.0), "resid_pdrop 0.1, embd_pdrop 0.1, attn_pdrop 0.0.*dropout"),
    (dict(n_layer=3), "holds 2 blocks, its config says n_layer 3"),
    (dict(n_layer=10 ** 12), "holds 2 blocks, its config says n_layer 1000000000000"),
    (dict(n_layer=1), "holds 2 blocks, its config says n_layer 1"),
    (dict(n_positions=6), r"'wpe.weight' has shape \(5, 4\), expected \(6, 4\)"),
    (dict(n_positions=10 ** 12), r"'wpe.weight' has shape \(5, 4\), expected \(1000"),
    (dict(vocab_size=10 ** 12), r"'wte.weight' has shape \(7, 4\), expected \(1000"),
])
def test_a_config_that_does_not_fit_is_refused(tmp_path, changes, message):
    """By each way in, before memory for such a model is asked for."""
    folder = write(tmp_path / "a", **changes)
    for load in (minifpt.GPT2.from_pretrained, minifpt.LanguageModel.from_pretrained,
                 lambda folder: convert(folder, tmp_path / "w.npz")):
        with refused(message) as error:
            load(folder)
        assert str(folder) in str(error.value)
    assert not (tmp_path / "w.npz").exists()


def test_settings_of_a_config_are_kept(tmp_path):
    folder = write(tmp_path / "a", layer_norm_epsilon=0.5, n_inner=16, reorder_and_upcast_attn=True,
                   activation_function="gelu_pytorch_tanh", attn_pdrop=0.3, pruned_heads={})
    config = minifpt.GPT2.from_pretrained(folder, dropout=0.2).config
    assert config == minifpt.GPT2Config(**CONFIG, dropout=0.2, layer_norm_epsilon=0.5,
                                        activation_function="gelu_pytorch_tanh")
    path = convert(folder, tmp_path / "w.npz", dropout=0.2)
    assert minifpt.GPT2.from_pretrained(path).config == config


# ---------------------------------------------------------------------------- damage


@pytest.mark.parametrize("content", [
    b"", b"\0" * 7, b"\0" * 8, b"\xff" * 50, (2 ** 40).to_bytes(8, "little") + b"{}",
    pack(b"no", b""), pack(b"[]", b""), pack(b"7", b""), pack(b"\xff\xfe", b""),
    pack(b"[" * 100_000, b""), pack(b'{"a": 1}', b""), pack({"a": {}}, b""),
    *[pack({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} | bad}, b"1234")
      for bad in (dict(shape=[2]), dict(shape=[-1]), dict(shape=[1.0]), dict(shape="1"),
                  dict(shape=None), dict(shape=[True]), dict(data_offsets=[0, 5]),
                  dict(data_offsets=[-4, 0]), dict(data_offsets=[0]), dict(data_offsets=[4, 8]),
                  dict(dtype="F64"), dict(dtype=["F32"]), dict(dtype=None))],
    pack({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345"),
    pack({"a": {"dtype": "X", "shape": [1], "data_offsets": [3, 1]}}, b"1234"),
    pack({k: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for k in "ab"}, b"1234"),
    *[pack({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            "b": {"dtype": "F32", "shape": [0], "data_offsets": [at, at]}}, b"1234")
      for at in (3, 5)],
    safetensors(arrays() | {"ln_f.bias": np.ones(4, np.int64)}),
    safetensors(arrays())[:-1], safetensors(arrays()) + b"x", safetensors(arrays())[:300]])
def test_damaged_safetensors_are_refused(tmp_path, content):
    folder = write(tmp_path / "a")
    (folder / "model.safetensors").write_bytes(content)
    with refused("model.safetensors: "):
        minifpt.GPT2.from_pretrained(folder)


def test_a_git_lfs_pointer_is_named(tmp_path):
    """In place of weights of both kinds, of a config, of a text and of data."""
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
    folder = write(tmp_path / "a")
    cifar = [f"data_batch_{i}.bin" for i in range(1, 6)]
    for file, read in (
            ("model.safetensors", lambda: minifpt.GPT2.from_pretrained(folder)),
            ("config.json", lambda: minifpt.GPT2.from_pretrained(folder)),
            ("w.npz", lambda: minifpt.trunks.get(folder / "w.npz")),
            ("train.txt", lambda: minifpt.tasks.get("text", files=str(folder / "train.txt"))),
            *((name, lambda: data.cifar10("train", folder)) for name in cifar)):
        (folder / file).write_bytes(pointer)
        if file not in cifar[:-1]:
            with refused("this is a Git LFS pointer, not the file: 'git lfs pull'"):
                read()
        if file == "config.json":
            write(folder)


def test_a_file_that_was_cut_after_its_header_was_read_is_refused(tmp_path):
    folder = write(tmp_path / "a")
    _, tensors = weights.read(folder)
    (folder / "model.safetensors").write_bytes(safetensors(arrays())[:-1])
    with refused("model.safetensors: '.*' is damaged"):
        for tensor in tensors.values():
            tensor.read()


def change_index(change):
    def edit(folder):
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        change(index)
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return edit


@pytest.mark.parametrize("kind, edit, message", [
    (ValueError, change_index(lambda i: i.pop("weight_map")), "weight_map must"),
    (ValueError, change_index(lambda i: i["weight_map"].update(x="../x")), "weight_map must"),
    (ValueError, change_index(lambda i: i["weight_map"].update(x=3)), "weight_map must"),
    (ValueError, change_index(lambda i: i["weight_map"].update(x=i["weight_map"].popitem()[1])),
     "says that 'x' is in"),
    *[(ValueError, change_index(lambda i, file=file: i["weight_map"].update(x=file)),
       f"{file}: not a safetensors file") for file in ("model.safetensors.index.json",
                                                       "config.json")],
    (FileNotFoundError, change_index(lambda i: i["weight_map"].update(x="x.safetensors")),
     "x.safetensors: there is no such file"),
    (FileNotFoundError, lambda f: (f / "model-00002-of-00003.safetensors").unlink(),
     "model-00002-of-00003.safetensors: there is no such file"),
    (FileNotFoundError, lambda f: (f / "config.json").unlink(), "config.json: there is no such"),
    (ValueError, lambda f: (f / "config.json").write_text("{"), "config.json: not JSON"),
    (ValueError, lambda f: (f / "config.json").write_text("[" * 99999), "config.json: not JSON"),
    (ValueError, lambda f: (f / "config.json").write_bytes(b"\xff"), "config.json: not text"),
    (ValueError, lambda f: (f / "config.json").write_text("[]"), "expected a JSON object"),
    (FileNotFoundError, lambda f: (f / "model.safetensors.index.json").unlink(),
     "the folder holds none of model.safetensors"),
])
def test_damaged_folders_are_refused(tmp_path, kind, edit, message):
    folder = tmp_path / "a"
    shutil.copytree(GOLDEN / "sharded", folder)
    edit(folder)
    with refused(message, kind):
        minifpt.GPT2.from_pretrained(folder)
    with refused(message, (ValueError, FileNotFoundError)):
        convert(folder, tmp_path / "w.npz")
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.parametrize("source", ["a", "a/pytorch_model.bin"])
def test_pickles_are_not_read(tmp_path, source):
    folder = write(tmp_path / "a")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with refused(None, (ValueError, FileNotFoundError)) as error:
        minifpt.GPT2.from_pretrained(tmp_path / source)
    assert source in str(error.value)
    with refused("safetensors", (ValueError, FileNotFoundError)):
        convert(tmp_path / source, tmp_path / "w.npz")


# --------------------------------------------------------------------------- convert


@pytest.fixture
def cache(cwd, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cwd / "cache"))
    return cwd / "cache" / "minifpt" / "weights"


def test_convert_into_the_cache(tmp_path, cache):
    folder = write(tmp_path / "my.model")
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "vocab.json").write_text("{}")
    path = convert(folder)
    assert path == cache / "my.model.npz"
    assert sorted(f.name for f in cache.iterdir()) == [
        "my.model.merges.txt", "my.model.npz", "my.model.vocab.json"]
    assert "my.model" in weights.available()
    shutil.rmtree(folder)
    assert weights.find("my.model") == path
    check(minifpt.GPT2.from_pretrained("my.model"),
          {n: a.astype(np.float16) for n, a in arrays().items()})


# ------------------------------------------------------------------------------- hub


@pytest.fixture
def hub(monkeypatch):
    """In place of huggingface_hub: gives folders by repository, notes what was asked for."""
    fake = types.SimpleNamespace(folders={}, asked=[])

    def snapshot_download(repo, revision, allow_patterns):
        fake.asked.append((repo, allow_patterns, revision))
        if repo not in fake.folders:
            raise OSError(f"no {repo}\nand a second line")
        return str(fake.folders[repo])
    fake.snapshot_download = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", fake)
    return fake


@pytest.mark.parametrize("name, repo, file", [
    ("gpt2", "openai-community/gpt2", "gpt2"),
    ("distilgpt2", "distilbert/distilgpt2", "distilgpt2"),
    ("some.one/a-model", "some.one/a-model", "some.one--a-model")])
def test_a_repository_is_fetched_and_converted(tmp_path, cache, hub, name, repo, file):
    hub.folders[repo] = write(tmp_path / "5e3a")
    assert convert(name) == cache / f"{file}.npz"
    assert len(hub.asked) == 1 and "model-*.safetensors" in hub.asked[0][1]
    assert minifpt.GPT2.from_pretrained(name).config == minifpt.GPT2Config(**CONFIG)
    with np.load(cache / f"{file}.npz") as f:
        config = json.loads(str(f["config"]))
    assert config["source"] == repo and config["revision"] == "5e3a"


def test_the_weights_say_which_revision_was_fetched(tmp_path, cache, hub, capsys):
    hub.folders["a/with-a-long-name"] = write(tmp_path / "5e3a")       # the hub's name of a commit
    assert cli.main(["convert", "a/with-a-long-name", "--revision", "v1.0"]) == 0
    assert hub.asked[0][2] == "v1.0"
    assert cli.main(["info"]) == 0
    [line] = [x for x in capsys.readouterr().out.splitlines() if x.startswith("  a--")]
    assert line.split() == ["a--with-a-long-name", "a/with-a-long-name", "5e3a"]
    assert cli.main(["convert", tmp_path / "5e3a", "--revision", "v1.0"]) == 2
    assert "of a hub id owner/name, not of a path" in capsys.readouterr().err


def test_nothing_is_fetched_for_an_output_that_cannot_be_written(tmp_path, cache, hub):
    hub.folders["a/b"] = write(tmp_path / "5e3a")
    (tmp_path / "file").write_text("")
    for options, message in (({"dropout": 5}, "dropout is 5"), ({"revision": ""}, "revision ''"),
                             ({"out": tmp_path / "file" / "w.npz"}, "is a file"),
                             ({"out": tmp_path / ("x" * 400)}, "too long")):
        with pytest.raises((OSError, ValueError), match=message):
            convert("a/b", **options)
    assert hub.asked == []


def test_another_tokenizer_s_files_are_not_replaced(tmp_path, cache):
    source = write(tmp_path / "a")
    (source / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "w.merges.txt").write_text("mine")
    with refused("w.merges.txt is there already"):
        convert(source, tmp_path / "w.npz")
    assert (tmp_path / "w.merges.txt").read_text() == "mine"
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.parametrize("source, message", [
    ("gpt2-xl", "could not be fetched.*go online"), ("a/b", "holds none of model.safetensors"),
    ("c/d", "holds none of model.safetensors"),
    ("no library", "pip install huggingface_hub"),
    ("nothing", "neither a path, nor one of gpt2, .*owner/name"), ("a/b/c", "neither a path"),
    ("empty", "the folder holds none of"), ("text", "neither a folder")])
def test_a_source_that_cannot_be_converted_is_refused(tmp_path, cache, hub, monkeypatch, source,
                                                      message):
    hub.folders |= {"a/b": tmp_path, "c/d": tmp_path / "nowhere"}     # no file has a pattern's name
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("text")
    if source == "no library":
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
        source = "gpt2"
    with refused(message, ValueError if source == "text" else FileNotFoundError):
        convert(source)
    assert not any("bin" in pattern for request in hub.asked for pattern in request[1])


# ----------------------------------------------------------------------------- oracle


@pytest.mark.oracle
def test_the_hub_itself(tmp_path):
    """With huggingface_hub, offline, from its cache."""
    pytest.importorskip("huggingface_hub")
    repo = tmp_path / "hub" / "models--openai-community--gpt2"
    (repo / "snapshots").mkdir(parents=True)
    write(repo / "snapshots" / ("5e3a" * 10))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("5e3a" * 10)
    code = ("from minifpt import GPT2\nfrom minifpt.experiments.convert import import_weights\n"
            "print(import_weights('gpt2'))\nprint(GPT2.from_pretrained('gpt2').config.n_embd)")
    env = os.environ | {"HF_HUB_OFFLINE": "1"} | dict.fromkeys(("HF_HOME", "XDG_CACHE_HOME"),
                                                               str(tmp_path))
    run = child(sys.executable, "-c", code, env=env, cwd=Path(minifpt.__file__).parents[1],
                timeout=300)
    assert run.stdout.splitlines() == [str(tmp_path / "minifpt" / "weights" / "gpt2.npz"), "4"]
