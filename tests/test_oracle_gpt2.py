"""GPT-2s that Transformers itself wrote to disk: loaded, they compute what it computes.

Each array (hidden states, logits, the gradient of every parameter) is compared as the largest
difference relative to the largest entry: 1e-4 in float32, 1e-9 in float64.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import minifpt
from minifpt import functional as F
from minifpt import huggingface, weights
from minifpt.gpt2 import SHAPES, LanguageModel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

TOLERANCE = {np.float32: 1e-4, np.float64: 1e-9}
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None)


@pytest.fixture
def folder():
    """A folder that is gone after the test: pytest would keep gigabytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def make(seed=0, **config):
    """A model of Transformers' own initialisation, then all moved: no offset 0, no scale 1."""
    torch.manual_seed(seed)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **config, **NO_TOKENS, attn_implementation="eager")).eval()
    with torch.no_grad():
        for p in model.parameters():
            p += torch.randn_like(p) * (0.1 if p.ndim == 1 else 0.01)
    return model


def close(got, want, tolerance, name):
    want = want.detach().numpy()
    assert got.shape == want.shape, name
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error <= tolerance, f"{name}: relative error {error:.1e}"
    return error


def compare(model, path, dtype, T, B=2, seed=0):
    """Our trunk from ``path`` against the model; returns the worst error."""
    trunk = minifpt.GPT2.from_pretrained(path, dtype=dtype)
    tolerance = TOLERANCE[dtype]
    ids = np.random.default_rng(seed).integers(0, trunk.config.vocab_size, (B, T))
    model = model.to(torch.float64 if dtype == np.float64 else torch.float32)
    model.zero_grad()
    theirs = torch.tensor(ids)
    hidden = model.transformer(theirs).last_hidden_state
    logits = hidden @ model.transformer.wte.weight.T
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1),
                                      theirs[:, 1:].flatten()).backward()
    with trunk.all_frozen():
        y, _ = trunk.forward(trunk.wte.forward(ids)[0])
    worst = close(y, hidden, tolerance, "hidden")
    ours, cache = LanguageModel(trunk).forward(ids)
    worst = max(worst, close(ours, logits, tolerance, "logits"))
    close(ours, model(theirs).logits, tolerance, "logits of the whole model")
    _, c = F.cross_entropy(ours[:, :-1], ids[:, 1:])
    dlogits = np.zeros_like(ours)
    dlogits[:, :-1] = F.cross_entropy_backward(1.0, c)
    LanguageModel(trunk).backward(dlogits, cache)
    grads = {name: p.grad for name, p in model.transformer.named_parameters()}
    assert list(grads) == [name for name, _ in trunk.named_parameters()]
    for name, p in trunk.named_parameters():
        assert p.grad.dtype == dtype
        worst = max(worst, close(p.grad, grads.pop(name), tolerance, name))
        p.grad = None
    return worst


# Fewer layers for the two largest: a layer more adds memory and time, and nothing new.
LAYERS = {"gpt2": 12, "gpt2-medium": 24, "gpt2-large": 6, "gpt2-xl": 4, "distilgpt2": 6}


@pytest.mark.parametrize("name", LAYERS)
def test_shapes_of_gpt2(folder, name):
    shape = SHAPES.get(name, SHAPES["gpt2"]) | dict(n_layer=LAYERS[name])
    model = make(**shape)
    model.save_pretrained(folder)
    for dtype in TOLERANCE:
        compare(model, folder, dtype, T=24 if name == "gpt2-medium" else 80, B=1)
        gc.collect()


SMALL = dict(n_layer=2, n_head=4, n_embd=32, n_positions=90, vocab_size=50)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("changes", [
    {}, dict(n_layer=1, n_head=1, n_embd=8), dict(n_layer=8, n_head=2), dict(n_head=32),
    dict(layer_norm_epsilon=1e-2), dict(activation_function="gelu_pytorch_tanh"),
    dict(n_inner=128, n_positions=70), dict(vocab_size=1000, n_embd=80)])
def test_small_shapes(folder, dtype, changes):
    model = make(**SMALL | changes)
    model.save_pretrained(folder)
    compare(model, folder, dtype, T=model.config.n_positions)


@pytest.mark.parametrize("kind", ["whole", "shards", "trunk", "bin", "old bin", "bin trunk",
                                  "bin shards", "with masks"])
def test_every_way_to_save(folder, kind):
    """All give the same model; each converted too."""
    model = make(**SMALL)
    state = model.state_dict()
    model.config.save_pretrained(folder)
    if kind == "whole":
        model.save_pretrained(folder)
    elif kind == "shards":
        model.save_pretrained(folder, max_shard_size="40KB")
        assert len(list(folder.glob("model-*.safetensors"))) > 2
    elif kind == "trunk":
        model.transformer.save_pretrained(folder)
    elif kind == "bin trunk":
        torch.save(model.transformer.state_dict(), folder / "pytorch_model.bin")
    elif kind == "bin shards":
        names = [n for n in state if n != "lm_head.weight"]
        files = {n: f"pytorch_model-{1 + i % 2:05d}-of-00002.bin" for i, n in enumerate(names)}
        for file in set(files.values()):
            torch.save({n: state[n] for n in names if files[n] == file}, folder / file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    else:
        if kind == "with masks":
            for i in range(2):
                state[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 90, 90).tril().bool()
                state[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        torch.save(state, folder / "pytorch_model.bin",
                   _use_new_zipfile_serialization=kind != "old bin")
    compare(model, folder, np.float64, T=20)
    path = weights.convert(folder, folder / "w.npz", dtype="float32", progress=False)
    compare(model, path, np.float32, T=20)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("saved", ["safetensors", "bin"])
def test_other_numbers(folder, dtype, saved):
    """The numbers that are stored, exactly; float64 to the last bit in a float64 trunk."""
    model = make(**SMALL).to(dtype)
    model.save_pretrained(folder)
    if saved == "bin":
        (folder / "model.safetensors").unlink()
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    trunk = minifpt.GPT2.from_pretrained(folder, dtype=np.float64)
    want = dict(model.transformer.double().named_parameters())
    for name, p in trunk.named_parameters():
        np.testing.assert_array_equal(p.data, want[name].detach().numpy())


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", "code"])
def test_bad_bin(folder, content):
    """A pickle that would run code is refused, by PyTorch."""
    class Bomb:
        def __reduce__(self):
            return pytest.fail, ("a file ran code while it was loaded",)
    make(**SMALL).config.save_pretrained(folder)
    if content == "code":
        torch.save({"wte.weight": Bomb()}, folder / "pytorch_model.bin")
    else:
        (folder / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(ValueError, match="torch.load refuses it") as error:
        minifpt.GPT2.from_pretrained(folder)
    assert "\n" not in str(error.value)


def test_safetensors_as_its_own_library_reads_it(folder):
    safe = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    arrays = {"a": rng.standard_normal((3, 5)), "b": np.float32(rng.standard_normal(7)),
              "c": np.float16(rng.standard_normal((2, 1, 4))), "empty": np.zeros((0, 3)),
              "scalar": np.array(2.5)}
    safe.save_file(arrays, folder / "x.safetensors", metadata={"format": "np"})
    tensors = huggingface.read_safetensors(folder / "x.safetensors")
    assert tensors.keys() == arrays.keys()
    for name, a in arrays.items():
        assert tensors[name].shape == a.shape
        got = np.concatenate([np.empty(0, a.dtype), *tensors[name].blocks()])
        np.testing.assert_array_equal(got, a.reshape(-1))


@pytest.mark.parametrize("there", [True, False])
def test_the_hub_itself(folder, there):
    """With huggingface_hub, offline: from its cache, or refused in one line."""
    pytest.importorskip("huggingface_hub")
    if there:
        repo = folder / "hub" / "models--openai-community--gpt2"
        make(**SMALL).save_pretrained(repo / "snapshots" / ("5e3a" * 10))
        (repo / "refs").mkdir()
        (repo / "refs" / "main").write_text("5e3a" * 10)
    code = ("from minifpt import GPT2, weights\n"
            "try:\n    print(weights.convert('gpt2', progress=False))\n"
            "    print(GPT2.from_pretrained('gpt2').config.n_embd)\n"
            "except FileNotFoundError as e: print('refused:', e)")
    env = os.environ | {"HF_HUB_OFFLINE": "1"} | dict.fromkeys(("HF_HOME", "XDG_CACHE_HOME"),
                                                               str(folder))
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True,
                         cwd=Path(minifpt.__file__).parents[1], timeout=300)
    lines = run.stdout.splitlines()
    if there:
        assert lines == [str(folder / "minifpt" / "weights" / "gpt2.npz"), "32"], run.stderr
    else:
        assert len(lines) == 1 and lines[0].startswith("refused: 'openai-community/gpt2' could"), (
            run.stdout + run.stderr)


def test_generate_as_transformers(folder):
    """Greedily, from a batch of prompts, to the last position."""
    model = make(**SMALL, seed=4)
    with torch.no_grad():                                 # or it repeats one token for ever
        for p in model.parameters():
            p += 0.3 * torch.randn_like(p)
        model.transformer.wpe.weight *= 3
    model.save_pretrained(folder)
    trunk = minifpt.GPT2.from_pretrained(folder, dtype=np.float64)
    ids = np.random.default_rng(0).integers(0, 50, (3, 10))
    want = model.double().generate(
        torch.tensor(ids), attention_mask=torch.ones(3, 10), do_sample=False, max_new_tokens=80,
        pad_token_id=0, eos_token_id=None).numpy()
    assert len(np.unique(want[0, 10:])) > 5
    np.testing.assert_array_equal(trunk.generate(ids, 80, temperature=0), want)
