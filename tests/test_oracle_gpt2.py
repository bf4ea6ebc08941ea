"""GPT-2s that Transformers itself wrote to disk: loaded, they compute what it computes.

Each array (hidden states, logits, the gradient of every parameter) is compared as the largest
difference relative to the largest entry: in float32 1e-5, for gradients 1e-4; in float64 1e-9.
"""

import gc
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import child

import minifpt
from minifpt import functional as F
from minifpt.experiments.convert import import_weights as convert
from minifpt.files import huggingface
from minifpt.files.weights import by_gpt2_name
from minifpt.gpt2 import SHAPES

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.oracle

TOLERANCE = {np.float32: (1e-5, 1e-4), np.float64: (1e-9, 1e-9)}     # of values, of gradients
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None)


@pytest.fixture
def folder():
    """A folder that is gone after the test: pytest would keep gigabytes."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def make(seed=0, **config):
    """A model of Transformers' own initialisation, then all moved: no bias 0, no scale 1."""
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
    """Our language model from ``path`` against theirs; returns the worst error."""
    lm = minifpt.LanguageModel.from_pretrained(path, dtype=dtype)
    tolerance, grad_tolerance = TOLERANCE[dtype]
    ids = np.random.default_rng(seed).integers(0, lm.config.vocab_size, (B, T))
    model = model.to(torch.float64 if dtype == np.float64 else torch.float32)
    model.zero_grad()
    theirs = torch.tensor(ids)
    hidden = model.transformer(theirs).last_hidden_state
    logits = hidden @ model.transformer.wte.weight.T
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1),
                                      theirs[:, 1:].flatten()).backward()
    with lm.all_frozen():
        y, _ = lm.trunk.forward(lm.wte.forward(ids)[0])
    worst = close(y, hidden, tolerance, "hidden")
    ours, cache = lm.forward(ids)
    worst = max(worst, close(ours, logits, tolerance, "logits"))
    close(ours, model(theirs).logits, tolerance, "logits of the whole model")
    _, c = F.cross_entropy(ours[:, :-1], ids[:, 1:])
    dlogits = np.zeros_like(ours)
    dlogits[:, :-1] = F.cross_entropy_backward(1.0, c)
    lm.backward(dlogits, cache)
    grads = {name: p.grad for name, p in model.transformer.named_parameters()}
    mine = {name.removeprefix("trunk."): p for name, p in lm.named_parameters()}
    assert mine.keys() == grads.keys()
    for name, p in mine.items():
        assert p.grad.dtype == dtype
        worst = max(worst, close(p.grad, grads.pop(name), grad_tolerance, name))
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
    dict(activation_function="gelu"), dict(activation_function="relu"),
    dict(activation_function="relu", n_layer=6),
    dict(n_inner=128, n_positions=70), dict(vocab_size=1000, n_embd=80)])
def test_small_shapes(folder, dtype, changes):
    model = make(**SMALL | changes)
    model.save_pretrained(folder)
    compare(model, folder, dtype, T=model.config.n_positions)


@pytest.mark.parametrize("activation", ["gelu_new", "gelu", "relu"])
@pytest.mark.parametrize("kind", ["whole", "shards", "trunk", "with masks"])
def test_every_way_to_save(folder, kind, activation):
    """All give the same model; each converted too."""
    model = make(**SMALL, activation_function=activation)
    if kind == "shards":
        model.save_pretrained(folder, max_shard_size="40KB")
        assert len(list(folder.glob("model-*.safetensors"))) > 2
    elif kind == "trunk":
        model.transformer.save_pretrained(folder)
    else:
        model.save_pretrained(folder)
    if kind == "with masks":                              # as old versions wrote them
        safe = pytest.importorskip("safetensors.torch")
        state = safe.load_file(folder / "model.safetensors")
        for i in range(2):
            state[f"transformer.h.{i}.attn.bias"] = torch.ones(1, 1, 90, 90).tril().bool()
            state[f"transformer.h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
        safe.save_file(state, folder / "model.safetensors", {"format": "pt"})
    compare(model, folder, np.float64, T=20)
    path = convert(folder, folder / "w.npz", dtype="float32")
    compare(model, path, np.float32, T=20)
    compare(model, path, np.float64, T=20)                # float32 is all that was saved
    assert minifpt.GPT2.from_pretrained(path).config.activation_function == activation


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_numbers(folder, dtype):
    """The numbers that are stored, exactly; float64 to the last bit in a float64 model."""
    model = make(**SMALL).to(dtype)
    model.save_pretrained(folder)
    lm = minifpt.LanguageModel.from_pretrained(folder, dtype=np.float64)
    want = dict(model.transformer.double().named_parameters())
    for name, a in by_gpt2_name(lm):
        np.testing.assert_array_equal(a, want[name].detach().numpy())


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
        got = tensors[name].read().reshape(-1)
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
    code = ("from minifpt import GPT2\nfrom minifpt.experiments.convert import import_weights\n"
            "try:\n    print(import_weights('gpt2'))\n"
            "    print(GPT2.from_pretrained('gpt2').config.n_embd)\n"
            "except FileNotFoundError as e: print('refused:', e)")
    env = os.environ | {"HF_HUB_OFFLINE": "1"} | dict.fromkeys(("HF_HOME", "XDG_CACHE_HOME"),
                                                               str(folder))
    run = child(sys.executable, "-c", code, env=env, cwd=Path(minifpt.__file__).parents[1],
                timeout=300)
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
    lm = minifpt.LanguageModel.from_pretrained(folder, dtype=np.float64)
    ids = np.random.default_rng(0).integers(0, 50, (3, 10))
    want = model.double().generate(
        torch.tensor(ids), attention_mask=torch.ones(3, 10), do_sample=False, max_new_tokens=80,
        pad_token_id=0, eos_token_id=None).numpy()
    assert len(np.unique(want[0, 10:])) > 5
    np.testing.assert_array_equal(lm.generate(ids, 80, temperature=0), want)
