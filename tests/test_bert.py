"""BERT as a trunk: what Transformers computes, from what Transformers saved."""

import json

import numpy as np
import pytest
from conftest import refused
from test_convert import safetensors

import minifpt
from minifpt.experiments import compare
from minifpt.trunks.bert import BERT, BERTS
from minifpt.trunks.names import TrunkSpec

CONFIG = {"model_type": "bert", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8,
          "intermediate_size": 32, "max_position_embeddings": 12, "vocab_size": 7,
          "type_vocab_size": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
          "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


LINEAR = {"attention.self.query": (8, 8), "attention.self.key": (8, 8),
          "attention.self.value": (8, 8), "attention.output.dense": (8, 8),
          "intermediate.dense": (32, 8), "output.dense": (8, 32)}


def tensors(prefix="bert.", weight="weight", bias="bias"):
    """A BERT's, random: {name: array}; ``weight`` and ``bias`` are those of layer norms."""
    shapes = {"embeddings.word_embeddings.weight": (7, 8),
              "embeddings.position_embeddings.weight": (12, 8),
              "embeddings.token_type_embeddings.weight": (2, 8), "pooler.dense.weight": (8, 8)}
    for i in range(2):
        for part, shape in LINEAR.items():
            shapes[f"encoder.layer.{i}.{part}.weight"] = shape
            shapes[f"encoder.layer.{i}.{part}.bias"] = shape[:1]
    for part in ("embeddings", *(f"encoder.layer.{i}.{part}output" for i in range(2)
                                 for part in ("attention.", ""))):
        shapes[f"{part}.LayerNorm.{weight}"] = shapes[f"{part}.LayerNorm.{bias}"] = (8,)
    rng = np.random.default_rng(0)
    return {prefix + name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in sorted(shapes.items(), key=lambda item: item[0].replace(
                "gamma", "weight").replace("beta", "bias"))}


@pytest.fixture
def folder(tmp_path):
    """Writes a folder as save_pretrained does."""
    def write(given=None, name="bert-tiny", **config):
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(CONFIG | config))
        (path / "model.safetensors").write_bytes(safetensors(given or tensors()))
        return path
    return write


def test_names_of_old_checkpoints(folder):
    """Without a head there is no prefix, and old ones call scale and bias gamma and beta."""
    a = BERT.from_pretrained(folder())
    b = BERT.from_pretrained(folder(tensors("", "gamma", "beta"), "old"))
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        np.testing.assert_array_equal(p.data, q.data, name)
    given = tensors()
    np.testing.assert_array_equal(a.h[1].mlp.c_fc.weight.data,
                                  given["bert.encoder.layer.1.intermediate.dense.weight"].T)
    np.testing.assert_array_equal(a.h[0].attn.c_attn.bias.data[8:16],
                                  given["bert.encoder.layer.0.attention.self.key.bias"])


def test_a_bert_is_taken_as_a_model(folder, tmp_path):
    path = folder()
    spec = TrunkSpec.parse(path)
    trunk = minifpt.trunks.get(spec, dropout=0.0)
    assert isinstance(trunk, BERT) and spec.label == "bert-tiny"
    config = minifpt.trunks.config_for(spec)
    assert trunk.config == minifpt.trunks.config_for(spec, 0.0) and config.dropout == 0.1
    assert (config.causal, config.n_layer, config.layer_norm_epsilon) == (
        False, 2, 1e-12)
    drawn = minifpt.trunks.get(f"statistics:{path}")
    assert isinstance(drawn, BERT)
    assert (drawn.h[0].mlp.c_fc.weight.data != trunk.h[0].mlp.c_fc.weight.data).all()
    mixed = minifpt.trunks.get(f"{path}+attn=statistics:{path}")
    np.testing.assert_array_equal(mixed.h[1].mlp.c_fc.weight.data, trunk.h[1].mlp.c_fc.weight.data)
    np.testing.assert_array_equal(mixed.h[1].attn.c_attn.weight.data,
                                  drawn.h[1].attn.c_attn.weight.data)
    fpt, history = compare.run(minifpt.tasks.get("bit-xor", n=3), path, tmp_path / "run", steps=2,
                               batch_size=2, progress=False)
    assert np.isfinite(history[-1]["train_loss"])
    x, _ = minifpt.tasks.get("bit-xor", n=3).batch(np.random.default_rng(0), 2)
    with minifpt.trace(fpt) as t:
        fpt.forward(x)
    assert t.attention["trunk.h.1.attn"].shape == (2, 2, 6, 6)
    assert t.attention["trunk.h.1.attn"][..., 0, -1].all()        # no causal mask


@pytest.mark.parametrize("config, message", [
    ({"intermediate_size": 16}, "intermediate_size is 16, minifpt builds 32"),
    ({"is_decoder": True}, "is_decoder is True"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({"hidden_dropout_prob": 0.2}, "dropout is 0.2, and 0.1 in attention"),
    ({"hidden_act": "silu"}, "bad config: GPT2Config: activation_function is 'silu'"),
    ({"hidden_size": None}, "bad config: GPT2Config: n_embd must be a whole number"),
    ({"layer_norm_eps": None}, "bad config"),
    ({"num_hidden_layers": 3}, "does not hold the 3 blocks"),
    ({"num_hidden_layers": 1}, "does not hold the 1 blocks"),
    ({"num_hidden_layers": 10 ** 9}, "does not hold the 1000000000 blocks"),
    ({"max_position_embeddings": 10 ** 12}, "does not hold"),
    ({"model_type": "gpt2"}, "n_layer is None")])
def test_configs_that_do_not_fit(folder, config, message):
    with refused(message):
        minifpt.trunks.get(folder(**config))


@pytest.mark.parametrize("name, array, message", [
    ("encoder.layer.0.attention.self.key.weight", None, "holds no h.0.attn.c_attn.weight"),
    ("encoder.layer.0.attention.self.key.weight", np.zeros((4, 8)), "no h.0.attn.c_attn.weight"),
    ("encoder.layer.1.attention.self.key.weight", np.zeros((8, 4)), "no h.1.attn.c_attn.weight"),
    ("encoder.layer.1.intermediate.dense.weight", np.zeros((8, 32)), "no h.1.mlp.c_fc.weight"),
    ("embeddings.token_type_embeddings.weight", np.zeros((0, 8)), "no wpe.weight"),
    ("embeddings.position_embeddings.weight", np.zeros((11, 8)), "does not hold"),
    ("encoder.layer.1.output.LayerNorm.bias", np.full(8, np.nan), "h.1.ln_2.bias holds a NaN"),
])
def test_tensors_that_do_not_fit(folder, name, array, message):
    given = tensors()
    if array is None:
        del given[f"bert.{name}"]
    else:
        given[f"bert.{name}"] = array.astype(np.float32)
    with refused(message):
        minifpt.trunks.get(folder(given))


@pytest.mark.oracle
@pytest.mark.parametrize("head", ["BertModel", "BertForMaskedLM"])
@pytest.mark.parametrize("T", [7, 120])
def test_outputs_equal_those_of_transformers(tmp_path, head, T):
    """Hidden states and every gradient, in float64; in training mode as well."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    torch.manual_seed(0)
    theirs = getattr(transformers, head)(transformers.BertConfig(
        num_hidden_layers=3, hidden_size=32, num_attention_heads=4, intermediate_size=128,
        vocab_size=11, max_position_embeddings=150, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0)).to(torch.float64)
    with torch.no_grad():
        for p in theirs.parameters():
            p += torch.randn_like(p) * 0.15
    theirs.save_pretrained(tmp_path)
    theirs = getattr(theirs, "bert", theirs)
    ours = minifpt.trunks.get(tmp_path, dtype=np.float64)
    x, dy = np.random.default_rng(1).standard_normal((2, 2, T, 32))
    start = torch.tensor(x, requires_grad=True)
    out = theirs(inputs_embeds=start).last_hidden_state
    out.backward(torch.tensor(dy))
    y, cache = ours.forward(x)
    dx = ours.backward(dy, cache)

    def close(got, want, name):
        want = want.detach().numpy()
        error = np.abs(got - want).max() / np.abs(want).max()
        assert got.shape == want.shape and error <= 1e-9, f"{name}: relative error {error:.1e}"
    close(y, out, "hidden")
    close(dx, start.grad, "dx")
    grads = {name: p.grad for name, p in theirs.named_parameters()}
    close(ours.wpe.weight.grad, grads["embeddings.position_embeddings.weight"], "wpe")
    close(ours.wpe.weight.grad.sum(axis=0),
          grads["embeddings.token_type_embeddings.weight"][0], "token type")
    for name, p in ours.named_parameters():
        layer, _, kind = name.rpartition(".")
        if layer == "wpe":
            continue
        prefix = "" if layer == "ln" else f"encoder.layer.{layer.split('.')[1]}."
        inner = layer if layer == "ln" else layer.split(".", 2)[2]
        want = torch.cat([grads[f"{prefix}{part}.{kind}"] for part in BERTS[inner]])
        close(p.grad, want.T if want.ndim == 2 else want, name)
