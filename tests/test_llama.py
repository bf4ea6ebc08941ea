"""Llama: its parts against their definitions, the whole by its gradients and Transformers."""

import json

import numpy as np
import pytest
from conftest import refused

import minifpt
from minifpt import cli, fast, trunks
from minifpt import functional as F
from minifpt.experiments.convert import import_weights
from minifpt.files import families, weights
from minifpt.layers import KVCache
from minifpt.trunks import Llama, LlamaConfig, LlamaLM

SMALL = dict(n_layer=2, n_head=4, n_embd=16, n_group=2, n_positions=12, vocab_size=11, dropout=0.0)


def config(**changes):
    return LlamaConfig(**SMALL | changes)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


# ------------------------------------------------------------------------ operations


def test_rope_is_a_product_with_a_complex_number():
    x = normal(2, 3, 5, 8)
    y, _ = F.rope(x, 100.0, 2)
    turned = (x[..., :4] + 1j * x[..., 4:]) * np.exp(
        1j * np.arange(2, 7)[:, None] * 100.0 ** (-np.arange(4) / 4))
    np.testing.assert_allclose(y, np.concatenate([turned.real, turned.imag], axis=-1))


def test_rms_norm_is_layer_norm_of_centred_rows():
    x, w = normal(3, 4, 6), normal(6, seed=1)
    x -= x.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(F.rms_norm(x, w, 1e-3)[0], F.layer_norm(x, w, 0 * w, 1e-3)[0])


@pytest.mark.parametrize("n_group", [1, 2])
def test_heads_in_a_row_share_keys_and_values(n_group):
    q, (k, v) = normal(1, 4, 3, 2), normal(2, 1, n_group, 3, 2, seed=1)
    for ops in (F, fast):
        y, _ = ops.attention(q, k, v)
        for head in range(4):
            group = [head * n_group // 4]
            np.testing.assert_allclose(y[:, [head]], F.attention(
                q[:, [head]], k[:, group], v[:, group])[0], atol=1e-12)


# ------------------------------------------------------------------------ the whole


@pytest.mark.parametrize("n_group", [1, 2, 4])
@pytest.mark.parametrize("parts", [[12], [5, 7], [1] * 12, [10, 1, 1]])
def test_the_key_value_cache_gives_the_outputs_of_one_pass(parts, n_group):
    trunk, x = Llama(config(qkv_bias=True, n_group=n_group), dtype=np.float64), normal(2, 12, 16)
    whole, _ = trunk.forward(x)
    np.testing.assert_allclose(trunk.forward(x, last=3)[0], whole[:, -3:], atol=1e-12)
    past = [KVCache(12) for _ in trunk.h]
    with trunk.all_frozen():
        outputs = [trunk.forward(part, need_dx=False, past=past)[0]
                   for part in np.split(x, np.cumsum(parts)[:-1], axis=1)]
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole, atol=1e-12)
    assert past[0].k.shape == past[0].v.shape == (2, n_group, 12, 4)      # each group once


def test_the_default_has_as_many_parameters_as_gpt2():
    llama, gpt2 = (trunks.get(f"random:{kind}6x4x128") for kind in ("llama:", ""))

    def in_blocks(trunk):
        return sum(p.data.size for p in trunk.parameters() if p.group in ("attn", "mlp"))
    assert abs(in_blocks(llama) / in_blocks(gpt2) - 1) < 0.02
    grouped = trunks.get("random:llama:6x4/2x128")
    assert grouped.h[0].attn.k_proj.weight.data.shape == (128, 64)


# ------------------------------------------------------------------------------ files


@pytest.mark.parametrize("file", ["a.npz", "a"])
@pytest.mark.parametrize("changes", [{}, {"tied": False}, {"qkv_bias": True, "n_group": 4}])
def test_weights_are_read_back(tmp_path, changes, file):
    lm = LlamaLM(config(**changes), seed=2)
    lm.save(tmp_path / file, np.float32)
    again = trunks.language_model(tmp_path / file)
    assert isinstance(again, LlamaLM) and again.config == lm.config
    for (name, p), (_, q) in zip(lm.named_parameters(), again.named_parameters(), strict=True):
        assert np.array_equal(p.data, q.data), name
    trunk = trunks.get(str(tmp_path / file), dropout=0.25)
    assert isinstance(trunk, Llama) and trunk.config.dropout == 0.25
    with refused("GPT-2|gpt2"):
        minifpt.GPT2.from_pretrained(tmp_path / file)


def test_a_llama_without_a_head_is_converted_as_a_trunk(tmp_path):
    """Transformers' LlamaModel, whose config says that its table is not tied."""
    lm = LlamaLM(config(), seed=2)
    lm.save(tmp_path / "a")
    settings = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(
        json.dumps(settings | {"tie_word_embeddings": False}))
    trunk = trunks.get(str(import_weights(tmp_path / "a", tmp_path / "b.npz", "float32")))
    for (name, p), (_, q) in zip(lm.trunk.named_parameters(), trunk.named_parameters(),
                                 strict=True):
        assert np.array_equal(p.data, q.data), name


@pytest.mark.parametrize("change, says", [
    ({"rope_scaling": {"rope_type": "llama3"}, "rope_parameters": None}, "rope_type"),
    ({"rope_scaling": {"type": "linear"}}, "type is 'linear', minifpt builds only default"),
    ({"hidden_act": "gelu"}, "hidden_act"), ({"attention_bias": True}, "attention_bias"),
    ({"head_dim": 8}, "head_dim"), ({"num_hidden_layers": 3}, "holds 2 blocks"),
    ({"num_hidden_layers": "2"}, "n_layer"), ({"vocab_size": 12}, "wte.weight"),
    ({"num_key_value_heads": 3}, "groups"), ({"use_sliding_window": True}, "sliding"),
    ({"intermediate_size": 10 ** 9}, "up_proj"), ({"rms_norm_eps": 0}, "rms_norm"),
    ({"tie_word_embeddings": False}, "lm_head"),
    ({"rope_parameters": [1]}, "rope_parameters is .1., expected an object"),
    ({"tie_word_embeddings": "no"}, "config.json: tie_word_embeddings is 'no'")])
def test_a_config_that_does_not_fit_is_refused(tmp_path, change, says):
    LlamaLM(config()).save(tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with refused(says):
        LlamaLM.from_pretrained(tmp_path / "a")


@pytest.mark.parametrize("changes", [
    {"n_head": 3}, {"n_group": 3}, {"n_embd": 20}, {"n_embd": "x"}, {"n_layer": 0}, {"dropout": 1},
    {"rope_base": 0}, {"causal": False}, {"model_type": "gpt2"}])
def test_a_config_that_cannot_be_is_refused(changes):
    with refused():
        config(**changes)


def test_other_fields_of_the_rotary_angles_are_not_the_model_s(tmp_path):
    LlamaLM(config()).save(tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    raw = json.loads(path.read_text())
    raw["rope_parameters"] |= {"vocab_size": 5, "num_hidden_layers": 7}
    path.write_text(json.dumps(raw))
    assert LlamaLM.from_pretrained(tmp_path / "a").config == config()


def test_the_shipped_llama_predicts_held_out_text():
    """Its pretraining came to 1.632 nats a byte on all of it; letters alone have about 3."""
    text = weights.shipped("held-out.txt").read_bytes()[:4000]
    lm = trunks.language_model("minillama-tiny")
    assert 1.2 < lm.perplexity(np.frombuffer(text, np.uint8).astype(int))["nats_per_token"] < 1.9


# ------------------------------------------------------------------------ command line


def test_commands_take_a_llama(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = ["--model", "random:llama:1x2/1x8@0.8"]
    for argv in (["train", "bit-xor", *model, "--steps", 3, "--out", "run"],
                 ["train", "bit-xor", *model, "--steps", 4, "--out", "run", "--resume"],
                 ["steps", "bit-xor", *model, "--out", "run.html"],
                 ["attention", "run", "--examples", 2],
                 ["convert", "run", "--out", "folder"],
                 ["summary", "--model", "folder+attn=statistics:folder"],
                 ["pretrain", "language", "--text", weights.shipped("held-out.txt"), "--shape",
                  "llama:1x2x8", "--steps", 2, "--batch-size", 2, "--out", "small"],
                 ["generate", "ab", "--model", "small.npz", "--tokens", 3],
                 ["convert", "small.npz", "--out", "language"]):
        assert cli.main(argv) == 0, capsys.readouterr().err
    assert isinstance(trunks.language_model("language"), LlamaLM)
    assert cli.main(["pretrain", "vision", "--shape", "llama:1x2x8"]) == 2
    assert "causal" in capsys.readouterr().err


# ----------------------------------------------------------------------------- oracle


SHAPES = [
    ("Llama", dict(num_hidden_layers=3, num_attention_heads=4, hidden_size=32,
                   num_key_value_heads=2, intermediate_size=44, tie_word_embeddings=True)),
    ("Llama", dict(num_hidden_layers=2, num_attention_heads=6, hidden_size=48,
                   num_key_value_heads=1, intermediate_size=40, tie_word_embeddings=False,
                   rope_theta=500.0, rms_norm_eps=1e-4)),
    ("Llama", dict(num_hidden_layers=4, num_attention_heads=9, hidden_size=144,
                   num_key_value_heads=3, intermediate_size=384, tie_word_embeddings=True,
                   rope_theta=100000.0)),                 # SmolLM2's proportions
    ("Llama", dict(num_hidden_layers=1, num_attention_heads=2, hidden_size=8,
                   num_key_value_heads=2, intermediate_size=16, tie_word_embeddings=False)),
    ("Qwen2", dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=32,
                   num_key_value_heads=2, intermediate_size=64, tie_word_embeddings=True)),
    ("Qwen2", dict(num_hidden_layers=2, num_attention_heads=4, hidden_size=24,
                   num_key_value_heads=4, intermediate_size=20, tie_word_embeddings=False))]


@pytest.fixture
def theirs():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

    def make(kind, options, V=97):
        torch.manual_seed(0)
        settings = getattr(transformers, f"{kind}Config")(
            vocab_size=V, max_position_embeddings=160, bos_token_id=None, eos_token_id=None,
            pad_token_id=None, attn_implementation="eager", **options)
        model = getattr(transformers, f"{kind}ForCausalLM")(settings).eval()
        with torch.no_grad():
            for p in model.parameters():
                p += torch.randn_like(p) * (0.1 if p.ndim == 1 else 0.05)
        return model
    return make


def close(got, want, name):
    want = want.detach().numpy()
    assert got.shape == want.shape, name
    error = np.abs(got - want).max() / np.abs(want).max()
    assert error <= 1e-4, f"{name}: relative error {error:.1e}"


@pytest.mark.oracle
@pytest.mark.parametrize("kind, options", SHAPES)
@pytest.mark.parametrize("T, max_shard_size", [(7, "5GB"), (100, "20KB")])
def test_transformers_gives_the_same(tmp_path, theirs, kind, options, T, max_shard_size):
    """Hidden states, logits, every gradient and the text that follows, in float32."""
    import torch
    model = theirs(kind, options)
    model.save_pretrained(tmp_path / "a", max_shard_size=max_shard_size)
    is_sharded = (tmp_path / "a" / "model.safetensors.index.json").exists()
    assert is_sharded == (max_shard_size == "20KB") or options["hidden_size"] == 8
    lm = trunks.language_model(tmp_path / "a", dropout=0.0)
    ids, targets = np.random.default_rng(0).integers(0, 97, (2, 2, T))
    expected = model(torch.tensor(ids), output_hidden_states=True)
    torch.nn.functional.cross_entropy(expected.logits.flatten(0, 1), torch.tensor(targets).flatten()
                                      ).backward()
    hidden, _ = lm.trunk.forward(lm.wte.weight.data[ids])
    close(hidden, expected.hidden_states[-1], "hidden")
    logits, cache = lm.forward(ids)
    close(logits, expected.logits, "logits")
    assert logits.dtype == np.float32
    _, loss_cache = F.cross_entropy(logits, targets)
    lm.backward(F.cross_entropy_backward(np.float32(1), loss_cache), cache)
    grads = dict(families.as_transformers(lm.config, [
        (name.removeprefix("trunk."), p.grad) for name, p in lm.named_parameters()])[1])
    for name, p in model.named_parameters():
        close(grads.pop(name), p.grad, name)
    assert not grads
    text = model.generate(torch.tensor(ids[:, :7]), max_new_tokens=40, do_sample=False,
                          pad_token_id=0)
    assert np.array_equal(lm.generate(ids[:, :7], 40, temperature=0), text.numpy())


@pytest.mark.oracle
@pytest.mark.parametrize("kind, options", SHAPES[1:5:3])
def test_what_is_saved_transformers_reads(tmp_path, theirs, kind, options):
    import torch
    import transformers
    model = theirs(kind, options)
    model.save_pretrained(tmp_path / "a")
    trunks.language_model(tmp_path / "a").save(tmp_path / "b")
    again, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "b", output_loading_info=True)
    assert type(again) is type(model) and not any(report.values()), report
    ids = torch.arange(20)[None]
    with torch.no_grad():
        close(again(ids).logits.numpy(), model(ids).logits, "logits")
    for (name, p), q in zip(model.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q), name


@pytest.mark.oracle
def test_transformers_base_model_is_read_as_a_trunk(tmp_path, theirs):
    import torch
    model = theirs(*SHAPES[0]).model
    model.save_pretrained(tmp_path / "a")
    trunk = trunks.get(str(tmp_path / "a"), dropout=0.0)
    x = normal(2, 9, 32).astype(np.float32)
    with torch.no_grad():
        close(trunk.forward(x)[0], model(inputs_embeds=torch.tensor(x)).last_hidden_state, "hidden")


def change_tensors(folder, change):
    """Rewrite a folder's tensors."""
    safetensors = pytest.importorskip("safetensors.numpy")
    path = folder / "model.safetensors"
    tensors = safetensors.load_file(path)
    change(tensors)
    safetensors.save_file(tensors, path)


@pytest.mark.oracle
def test_a_head_that_differs_from_a_tied_table_is_a_head_of_its_own(tmp_path):
    lm = LlamaLM(config(tied=True))                       # Transformers 5 does so, too
    lm.save(tmp_path / "m")
    name = "model.embed_tokens.weight"
    change_tensors(tmp_path / "m", lambda t: t.update({"lm_head.weight": t[name].copy()}))
    assert LlamaLM.from_pretrained(tmp_path / "m").config.tied
    change_tensors(tmp_path / "m", lambda t: t.update({"lm_head.weight": t[name] + 1}))
    loaded = LlamaLM.from_pretrained(tmp_path / "m")
    assert not loaded.config.tied
    np.testing.assert_array_equal(loaded.lm_head.weight.data, lm.wte.weight.data + 1)
    LlamaLM(config(tied=False)).save(tmp_path / "u")
    change_tensors(tmp_path / "u", lambda t: t.pop(name))     # the head is not the table
    with refused("lacks 'wte.weight'"):
        LlamaLM.from_pretrained(tmp_path / "u")
