"""BERT, RoBERTa, Longformer, ViT and T5 as trunks: their gradients, their files, and what
Transformers computes from what it saved, and reads of what we save."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import refused
from test_convert import safetensors

import minifpt
from minifpt import cli, fast
from minifpt import functional as F
from minifpt.experiments import runs
from minifpt.experiments.convert import import_weights as convert
from minifpt.files import PACKAGE
from minifpt.files.families import read_config, registry
from minifpt.files.huggingface import read_safetensors
from minifpt.trunks.encoder import Encoder, EncoderConfig, buckets

SMALL = dict(n_layer=2, n_head=2, n_embd=8, n_positions=12, dropout=0.0, initializer_range=0.4)
GOLDEN = Path(__file__).parent / "golden" / "families"
CONFIGS = {"bert": {}, "roberta": {"n_inner": 6, "n_head": 1}, "vit": {"n_inner": 20},
           "longformer": {"window": 4}, "t5": {"head_dim": 3, "n_buckets": 8, "max_distance": 6},
           "t5, gated": {"gated": True, "activation_function": "gelu_new", "n_inner": 10}}


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def encoder(name, dtype=np.float32, **changes):
    return Encoder(EncoderConfig(name.split(",")[0], **SMALL | CONFIGS[name] | changes), 0, dtype)


# ------------------------------------------------------------------------- registry


def test_only_the_module_of_a_family_names_it():
    """Neither a text nor a name of the code, but for docstrings; GPT-2 and the LSTM are public."""
    words = {word.lower() for family in registry().values() if family.model_type not in (
        "gpt2", "lstm") for word in (family.title, family.model_type, family.config.__name__,
                                     family.trunk.__name__, family.name or family.title)}
    named = re.compile(rf"(?i)(?<![a-z])({'|'.join(words)})(?![a-z])")
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        nodes = [*ast.walk(ast.parse(text))]
        texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}     # docstrings
        found = [word for node in nodes if id(node) not in texts
                 for word in (getattr(node, key, 0) for key in ("id", "attr", "name", "value"))
                 if isinstance(word, str) and named.search(word)]
        assert not found or " = Family(" in text, (path, found)


# ------------------------------------------------------------------------ computing


@pytest.mark.parametrize("name", CONFIGS)
def test_gradients(name):
    report = minifpt.gradcheck(encoder(name, np.float64), (normal(2, 9, 8),), elementwise=0,
                               directions=1, far=None)
    assert report, str(report)


@pytest.mark.parametrize("T", [7, 130])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_adds_the_bias_to_its_scores(T, causal):
    """In tiles, too.  A bias of the causal mask is the causal mask."""
    qkv, bias, dy = normal(3, 3, 2, T, 4), normal(2, T, T, seed=1), normal(3, 2, T, 4, seed=2)
    if T < 10:
        assert minifpt.gradcheck(lambda *x: F.attention(*x[:3], causal=causal, bias=x[3]),
                                 F.attention_backward, (*qkv, bias))
    results = []
    for ops in (F, fast):
        y, cache = ops.attention(*qkv, causal=causal, bias=bias)
        results.append((y, *ops.attention_backward(dy, cache)))
        mask = np.broadcast_to(F.causal_mask(T, T, float), (2, T, T))
        np.testing.assert_allclose(ops.attention(*qkv, causal=False, bias=mask)[0],
                                   ops.attention(*qkv)[0], atol=1e-12)
    for simple, quick in zip(*results, strict=True):
        np.testing.assert_allclose(quick, simple, atol=1e-12)
    with refused("attention: bias has shape"):
        F.attention(*qkv, bias=bias[0])
    bias[1, 2, :3] = -np.inf                              # token 2 reads later ones alone
    assert np.isfinite(F.attention(*qkv, causal=False, bias=bias)[0]).all()
    with refused("the bias lets token 2 of head 1 read no token"):
        F.attention(*qkv, bias=bias)


@pytest.mark.parametrize("T, first", [(9, 5), (4, 3)])       # T, and the first token that changes
def test_a_window_ends_where_it_says(T, first):
    near, far = normal(1, T, 8), normal(1, T, 8, seed=1)
    far[:, :first] = near[:, :first]
    trunk = encoder("longformer", np.float64, n_layer=1)
    y, z = (trunk.forward(x)[0] for x in (near, far))
    np.testing.assert_array_equal(y[:, :first - 2], z[:, :first - 2])     # 3 reads tokens 1 to 5
    assert (y[:, first - 2] != z[:, first - 2]).any()


@pytest.mark.parametrize("name", CONFIGS)
def test_the_last_tokens_alone_are_those_of_all(name):
    trunk, x = encoder(name, np.float64), normal(2, 9, 8)
    np.testing.assert_allclose(trunk.forward(x, last=3)[0], trunk.forward(x)[0][:, -3:], atol=1e-12)


@pytest.mark.parametrize("kind", ["bert", "t5", "longformer:6"])
def test_a_frozen_random_trunk_learns_bit_xor(kind):
    task = minifpt.tasks.get("bit-xor", n=2)
    model = minifpt.FPT.for_task(task, f"random:{kind}:1x4x32@1.41", dropout=0.0)
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    history = minifpt.train(model, task, steps=150, lr=1e-2, batch_size=32, eval_every=150,
                            schedule="constant", warmup=0, progress=False)
    assert history[-1]["test_accuracy"] == 1
    for name, p in model.named_parameters():
        assert (p.data == before[name]).all() == (p.group in ("attn", "mlp")), name


@pytest.mark.parametrize("changes, message", [
    ({"n_head": 3}, "8 channels cannot be divided into 3 heads"), ({"causal": True}, "causal"),
    ({"window": 3}, "window is 3, expected an even number"), ({"n_buckets": 3}, "3 buckets"),
    ({"model_type": "gpt2"}, "model_type is 'gpt2', expected one of bert"),
    ({"activation_function": "swish"}, "activation_function is 'swish'"),
    ({"n_inner": 0}, "n_inner"), ({"gated": 1}, "gated")])
def test_a_config_that_cannot_be_is_refused(changes, message):
    with refused(message):
        EncoderConfig(**SMALL | changes)


# ----------------------------------------------------------------------------- files


@pytest.mark.parametrize("name", CONFIGS)
def test_a_trunk_is_saved_loaded_and_converted(name, tmp_path):
    trunk, x = encoder(name), normal(2, 9, 8).astype(np.float32)
    trunk.save(tmp_path / "a.npz", np.float32)
    trunk.save(tmp_path / "b")
    convert(tmp_path / "b", tmp_path / "c.npz", "float32")
    for file in ("a.npz", "b", "c.npz"):
        again = minifpt.trunks.get(tmp_path / file)
        assert type(again) is Encoder and again.config.model_type == name.split(",")[0]
        np.testing.assert_allclose(again.forward(x)[0], trunk.forward(x)[0], atol=1e-5)


BERT = {"attention.self.query": (8, 8), "attention.self.key": (8, 8),
        "attention.self.value": (8, 8), "attention.output.dense": (8, 8),
        "intermediate.dense": (24, 8), "output.dense": (8, 24)}
CONFIG = {"model_type": "bert", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8,
          "intermediate_size": 24, "max_position_embeddings": 12, "vocab_size": 7,
          "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}


def bert(prefix="bert.", scale="weight", offset="bias"):
    """The tensors of a BERT, random; ``scale`` and ``offset`` are those of layer norms."""
    shapes = {"embeddings.position_embeddings.weight": (12, 8),
              "embeddings.token_type_embeddings.weight": (2, 8), "pooler.dense.weight": (8, 8)}
    norms = ["embeddings"]
    for i in range(2):
        for part, shape in BERT.items():
            shapes |= {f"encoder.layer.{i}.{part}.weight": shape,
                       f"encoder.layer.{i}.{part}.bias": shape[:1]}
        norms += [f"encoder.layer.{i}.attention.output", f"encoder.layer.{i}.output"]
    for norm in norms:
        shapes |= {f"{norm}.LayerNorm.{scale}": (8,), f"{norm}.LayerNorm.{offset}": (8,)}
    rng = np.random.default_rng(0)
    return {prefix + name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path):
    """Writes a folder as save_pretrained does."""
    def write(tensors=None, name="bert-tiny", **changes):
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        (path / "config.json").write_text(json.dumps(CONFIG | changes))
        (path / "model.safetensors").write_bytes(safetensors(tensors or bert()))
        return path
    return write


def test_a_folder_is_read_by_hand(folder):
    """Also as old versions wrote it, without a head and with gamma and beta."""
    theirs = bert()
    for tensors in (theirs, bert("", "gamma", "beta")):
        trunk = minifpt.trunks.get(folder(tensors))
        for i, part in enumerate(("query", "key", "value")):
            columns = slice(8 * i, 8 * i + 8)
            name = f"bert.encoder.layer.1.attention.self.{part}"
            np.testing.assert_array_equal(trunk.h[1].attn.c_attn.weight.data[:, columns],
                                          theirs[f"{name}.weight"].T)
            np.testing.assert_array_equal(trunk.h[1].attn.c_attn.bias.data[columns],
                                          theirs[f"{name}.bias"])
        np.testing.assert_array_equal(trunk.h[0].ln_1.weight.data, theirs[
            "bert.encoder.layer.0.attention.output.LayerNorm.weight"])
        np.testing.assert_allclose(
            trunk.wpe.weight.data, theirs["bert.embeddings.position_embeddings.weight"]
            + theirs["bert.embeddings.token_type_embeddings.weight"][0])


def test_a_bert_is_taken_as_a_model(folder, tmp_path):
    path = folder()
    trunk = minifpt.trunks.get(path, dropout=0.0)
    config = trunk.config
    assert (config.causal, config.n_layer, config.layer_norm_epsilon) == (False, 2, 1e-12)
    drawn = minifpt.trunks.get(f"statistics:{path}")
    mixed = minifpt.trunks.get(f"{path}+attn=statistics:{path}")
    for layer, other in (("mlp.c_fc", trunk), ("attn.c_attn", drawn)):
        a, b = (dict(model.named_parameters())[f"h.1.{layer}.weight"].data
                for model in (mixed, other))
        np.testing.assert_array_equal(a, b)
    fpt, history = runs.run(minifpt.tasks.get("bit-xor", n=3), path, tmp_path / "run", steps=2,
                               batch_size=2, progress=False)
    assert np.isfinite(history[-1]["train_loss"])
    x, _ = minifpt.tasks.get("bit-xor", n=3).batch(np.random.default_rng(0), 2)
    with minifpt.trace(fpt) as t:
        fpt.forward(x)
    assert t.attention["trunk.h.1.attn"].shape == (2, 2, 6, 6)
    assert t.attention["trunk.h.1.attn"][..., 0, -1].all()        # no causal mask
    assert cli.main(["convert", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    exported = minifpt.trunks.get(tmp_path / "out")
    np.testing.assert_allclose(exported.wpe.weight.data[:6], fpt.trunk.wpe.weight.data[:6])


@pytest.mark.parametrize("changes, message", [
    ({"intermediate_size": 16}, r"'h.0.mlp.c_fc.weight' has shape \(8, 24\), expected \(8, 16\)"),
    ({"is_decoder": True}, "is_decoder is True, minifpt builds only False"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({"hidden_dropout_prob": 0.2}, "hidden_dropout_prob 0.2, attention_probs_dropout_prob 0.1"),
    ({"hidden_act": "quick_gelu"}, "bad config: EncoderConfig: activation_function"),
    *[({key: value}, f"config.json: {key} must be a whole number, at least 1, got {value!r}")
      for key in ("hidden_size", "max_position_embeddings", "num_attention_heads", "vocab_size")
      for value in (None, "8", 8.0, 0, -1)],
    ({"layer_norm_eps": None}, "layer_norm_eps is null"),
    ({"hidden_act": None}, "hidden_act is null"),
    ({"num_hidden_layers": 3}, "holds 2 blocks, its config says n_layer 3"),
    ({"num_hidden_layers": 10 ** 9}, "holds 2 blocks, its config says n_layer 1000000000"),
    ({"max_position_embeddings": 10 ** 12}, "'wpe.weight' has shape"),
    ({"model_type": "mamba"}, "model_type is 'mamba', expected one of bert, .*llama"),
    ({"model_type": ["bert"]}, "model_type is"),
    ({"model_type": "gpt2"}, "n_layer must be a whole number"),
    ({"model_type": "longformer"}, "holds 0 blocks"),
    ({"model_type": "longformer", "attention_window": None}, "attention_window is null"),
    *[({"model_type": "longformer", "attention_window": windows}, "expected one number for all")
      for windows in ([4, 8], [])],
    *[({"model_type": "roberta", "pad_token_id": value}, "pad_token_id must be a whole number")
      for value in (None, [], -1)],
    ({"model_type": "t5", "d_kv": 8}, "num_layers must be a whole number")])
def test_a_folder_whose_config_does_not_fit_is_refused(folder, changes, message):
    with refused(message):
        minifpt.trunks.get(folder(**changes))


ONLY_SIZES = {key: value for key, value in CONFIG.items() if type(value) is int}


@pytest.mark.parametrize("fields, settings", [
    ({"model_type": "bert"}, {"n_positions": 12, "layer_norm_epsilon": 1e-12,
                              "activation_function": "gelu", "dropout": 0.1}),
    ({"model_type": "roberta"}, {"n_positions": 10}), ({"model_type": "vit"}, {"dropout": 0.0}),
    ({"model_type": "longformer"}, {"n_positions": 10, "window": 512}),
    ({"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12},
     {"n_embd": 8, "activation_function": "gelu_new"})])
def test_a_config_without_some_fields_is_read_as_transformers_reads_it(fields, settings):
    assert read_config(ONLY_SIZES | fields, "config.json").items() >= settings.items()


def test_a_config_without_its_family_is_refused():
    with refused("config.json: model_type is None, expected one of bert, .*llama"):
        read_config(ONLY_SIZES, "config.json")


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["Bert", "Roberta", "Longformer", "ViT", "T5", "GPT2", "Llama",
                                  "Qwen2"])
def test_the_defaults_are_those_of_transformers(name):
    """Of each field but the sizes, which every file has."""
    transformers = pytest.importorskip("transformers")
    raw = getattr(transformers, f"{name}Config")().to_dict()
    settings = read_config(raw, "config.json")
    for key, value in raw.items():
        if type(value) is not int and key != "model_type":
            fewer = {field: raw[field] for field in raw if field != key}
            assert read_config(fewer, "config.json") == settings, key
    for key in {"attention_window", "pad_token_id"} & {*raw}:
        fewer = {field: raw[field] for field in raw if field != key}
        assert read_config(fewer, "config.json") == settings, key


@pytest.mark.parametrize("name, array, message", [
    ("encoder.layer.0.attention.self.key.weight", None, "lacks 'encoder.layer.0.attention.self"),
    ("encoder.layer.0.attention.self.key.weight", np.zeros((4, 8)), "c_attn.weight' has shape"),
    ("encoder.layer.1.attention.self.key.weight", np.zeros((8, 4)), "key.weight' has shape"),
    ("encoder.layer.1.attention.self.key.weight", np.zeros(()), "key.weight' has shape"),
    ("encoder.layer.1.attention.self.key.weight", np.zeros((8, 8), int), "key.weight' is I64"),
    ("embeddings.LayerNorm.gamma", np.zeros(8), "'embeddings.LayerNorm.weight' twice"),
    ("encoder.layer.1.intermediate.dense.weight", np.zeros((8, 24)), "c_fc.weight' has shape"),
    ("encoder.layer.1.adapter.weight", np.zeros(3), "'encoder.layer.1.adapter.weight', which mini"),
    *[("embeddings.token_type_embeddings.weight", np.zeros(shape), "types?_embeddings.* has shape")
      for shape in ((0, 8), (16,), (2, 1), ())],
    ("embeddings.token_type_embeddings.weight", np.zeros((2, 8), int), "weight' is I64"),
    ("embeddings.token_type_embeddings.weight", None, "lacks 'embeddings.token_type_embeddings"),
    ("embeddings.position_embeddings.weight", np.zeros((2, 6, 8)), r"weight' has shape \(2, 6, 8"),
    ("embeddings.position_embeddings.weight", np.zeros((11, 8)), "'wpe.weight' has shape"),
    ("embeddings.position_embeddings.weight", np.zeros(11), "expected rows of 11 channels"),
    ("encoder.layer.1.output.LayerNorm.bias", np.full(8, np.nan), "h.1.ln_2.bias' holds a NaN")])
def test_a_folder_whose_tensors_do_not_fit_is_refused(folder, name, array, message):
    tensors = bert() | {f"bert.{name}": array}
    tensors = {key: a.astype(np.float32) if a.dtype.kind == "f" else a
               for key, a in tensors.items() if a is not None}
    with refused(message):
        minifpt.trunks.get(folder(tensors))


@pytest.mark.parametrize("changes, message", [
    *[({"d_kv": value}, "d_kv must be a whole number") for value in (None, "3", 0)],
    ({"d_kv": 10 ** 9}, "'h.0.attn.c_attn.weight' has shape"),
    ({"num_heads": 10 ** 9}, "'relative.weight' has shape"),
    *[({"feed_forward_proj": name}, f"activation_function is '{name}'")
      for name in ("7", "x-relu", "x-gated-gelu")]])
def test_a_t5_whose_config_does_not_fit_is_refused(tmp_path, changes, message):
    encoder("t5").save(tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with refused(message):
        minifpt.trunks.get(tmp_path / "a")


def test_each_class_reads_its_own_families(folder, tmp_path):
    encoder("t5").save(tmp_path / "t5.npz")
    for path, kind in ((folder(), minifpt.GPT2), (tmp_path / "t5.npz", minifpt.LanguageModel),
                       (folder(), minifpt.trunks.Llama), ("minigpt-tiny", Encoder)):
        with refused("model_type is '.*', expected"):
            kind.from_pretrained(path)


@pytest.mark.parametrize("shape", ["bert:1x2x8", "t5:1x2x8", "longformer:8:1x2x8", "vit:1x2x8"])
def test_a_masked_language_model_is_pretrained_and_exported(shape, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("It was a cold day in April. " * 300)
    options = ["--shape", shape, "--steps", 2, "--batch-size", 2, "--tokens", 16, "--out", "small"]
    assert cli.main(["pretrain", "masked", "--text", "a.txt", *options]) == 0
    assert cli.main(["summary", "bit-xor", "--model", "small.npz"]) == 0
    assert cli.main(["summary", "bit-xor", "--model", "statistics:small.npz"]) == 0
    assert cli.main(["convert", "small.npz", "--out", "folder"]) == 0
    a, b = (minifpt.trunks.get(path) for path in ("small.npz", "folder"))
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        np.testing.assert_allclose(p.data, q.data, rtol=1e-6, err_msg=name)
    assert cli.main(["pretrain", "language", "--text", "a.txt", "--shape", shape]) == 2
    assert "needs a trunk with a causal mask" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["random:longformer:2x2x8", "random:bert:8:2x2x8",
                                  "random:longformer:7:2x2x8", "random:bart:2x2x8"])
def test_a_name_that_is_no_shape_is_refused(fails, name):
    fails("summary", "--model", name)


# ---------------------------------------------------------------------------- golden


@pytest.mark.parametrize("folder", sorted(GOLDEN.iterdir()), ids=lambda folder: folder.name)
def test_a_folder_that_transformers_wrote_has_its_hidden_states_and_is_written_alike(folder,
                                                                                    tmp_path):
    """So a layout that is read and written equally wrong shows without Transformers."""
    expected = np.load(folder / "expected.npz")
    trunk = minifpt.trunks.get(folder, dtype=np.float64)
    np.testing.assert_allclose(trunk.forward(expected["x"])[0], expected["hidden"], atol=1e-5)
    trunk.save(tmp_path / "again")
    theirs, ours = ({name: tensor.read() for name, tensor in read_safetensors(
        path / "model.safetensors").items()} for path in (folder, tmp_path / "again"))
    assert {*ours} <= {*theirs}
    # Two tables are added into one; global attention is not read.
    others = "position_embeddings", "token_type_embeddings", "_global"
    for name, array in ours.items():
        if not any(part in name for part in others):
            np.testing.assert_array_equal(array, theirs[name], name)


# ---------------------------------------------------------------------------- oracle


SIZES = dict(hidden_size=32, num_attention_heads=4, intermediate_size=48, num_hidden_layers=2,
             hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, max_position_embeddings=150)
T5 = dict(d_model=32, num_heads=4, d_kv=8, d_ff=48, num_layers=2, dropout_rate=0.0)
# (class in Transformers, options, tokens)
ORACLE = {
    "bert": ("BertModel", SIZES, 120), "bert, one head": ("BertModel", SIZES | {
        "num_attention_heads": 1, "hidden_size": 20, "intermediate_size": 7}, 9),
    "bert, relu": ("BertModel", SIZES | {"hidden_act": "relu", "type_vocab_size": 5}, 40),
    "bert, masked language model": ("BertForMaskedLM", SIZES, 7),
    "bert, classifier": ("BertForSequenceClassification", SIZES | {"layer_norm_eps": 1e-3}, 7),
    "roberta": ("RobertaModel", SIZES | {"pad_token_id": 3}, 7),
    "roberta, masked language model": ("RobertaForMaskedLM", SIZES, 30),
    "longformer": ("LongformerModel", SIZES | {"attention_window": 8}, 64),
    "longformer, windows": ("LongformerModel", SIZES | {"attention_window": [16, 16]}, 96),
    "vit": ("ViTModel", SIZES | {"image_size": 48, "patch_size": 4}, 120),
    "vit, oblong": ("ViTModel", SIZES | {"image_size": [16, 24], "patch_size": 8}, 6),
    "vit, classifier": ("ViTForImageClassification", SIZES | {"image_size": 12, "patch_size": 4,
                                                              "hidden_act": "gelu_new"}, 9),
    "t5": ("T5EncoderModel", T5, 200), "t5, odd width": ("T5EncoderModel", T5 | {
        "d_kv": 5, "relative_attention_num_buckets": 9, "relative_attention_max_distance": 20}, 40),
    "t5, whole model": ("T5ForConditionalGeneration", T5 | {"d_kv": 12}, 7),
    "t5, classifier": ("T5ForSequenceClassification", T5, 7),
    "t5, gated": ("T5EncoderModel", T5 | {"feed_forward_proj": "gated-gelu"}, 30),
    "t5, gated by silu": ("T5EncoderModel", T5 | {"feed_forward_proj": "gated-silu"}, 7)}


def theirs_of(name):
    """Return a model of Transformers, no weight of which is as it was drawn, its trunk and T."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    kind, options, T = ORACLE[name]
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    whole = cls(cls.config_class(**options | ({} if "ViT" in kind else {"vocab_size": 11}))).eval()
    with torch.no_grad():
        for p in whole.parameters():
            p += torch.randn_like(p) * 0.1
    trunk = next((getattr(whole, part) for part in ("bert", "roberta", "vit", "transformer")
                  if hasattr(whole, part)), whole)
    return whole, trunk, T


def hidden_states(trunk, x):
    """Return Transformers' last hidden states of embeddings x; of a ViT behind its patches."""
    kind = type(trunk).__name__
    if kind == "ViTModel":
        x = x + trunk.embeddings.position_embeddings[:, 1:x.shape[1] + 1]
        for layer in trunk.layers:
            x = layer(x)
        return trunk.layernorm(x)
    run = trunk.encoder if kind.startswith("T5") else trunk
    return run(inputs_embeds=x).last_hidden_state


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ORACLE)
def test_transformers_computes_the_same_and_reads_what_is_saved(tmp_path, name, dtype):
    """Hidden states, dx and the gradient of each parameter, from its folder and from ours.
    Transformers computes Longformer's attention and T5's norm in float32, whatever the dtype."""
    import torch
    import transformers
    whole, theirs, T = theirs_of(name)
    whole.to(getattr(torch, dtype)).save_pretrained(tmp_path / "a", max_shard_size=(
        "20KB" if T == 7 else "5GB"))
    limit = 1e-4 if dtype == "float32" or name.split(",")[0] in ("t5", "longformer") else 1e-10
    ours = minifpt.trunks.get(tmp_path / "a", dtype=np.dtype(dtype))
    x, dy = normal(2, 2, T, ours.config.n_embd).astype(dtype)
    y, cache = ours.forward(x)
    dx = ours.backward(dy, cache)
    ours.save(tmp_path / "b")
    kind = transformers.T5EncoderModel if "t5" in name else type(theirs)
    for i, model in enumerate((theirs, kind.from_pretrained(tmp_path / "b"))):
        model = model.to(getattr(torch, dtype)).eval()
        start = torch.tensor(x, requires_grad=True)
        out = hidden_states(model, start)
        out.backward(torch.tensor(dy))
        wanted = {"hidden": (y, out.detach().numpy()), "dx": (dx, start.grad.numpy())}
        with torch.no_grad():                             # a model whose weights are the gradients
            for key, p in model.named_parameters():
                p.copy_(torch.zeros_like(p) if p.grad is None or "token_type" in key else p.grad)
        model.save_pretrained(tmp_path / f"gradients {i}")
        grads = minifpt.trunks.get(tmp_path / f"gradients {i}", dtype=np.dtype(dtype))
        for (key, p), q in zip(ours.named_parameters(), grads.parameters(), strict=True):
            scale = np.ones(1)
            if "c_attn.weight" in key and ours.config.model_type == "t5":
                scale = np.ones(p.data.shape[1])          # the queries are sqrt(D) W
                scale[:len(scale) // 3] = ours.config.head_dim
            wanted[key] = p.grad * scale, q.data
        least = 1e-2 * np.abs(dx).max()                   # the bias of keys has no gradient
        for key, (got, want) in wanted.items():
            error = np.abs(got - want).max() / max(np.abs(want).max(), least)
            # Our folder holds the sum of positions and token types in float32.
            assert got.shape == want.shape and error < max(limit, 1e-6 * i), (
                f"{key}: relative error {error:.1e}")


@pytest.mark.oracle
def test_bfloat16_is_read(tmp_path):
    import torch
    whole, _, _ = theirs_of("bert")
    whole.to(torch.bfloat16).save_pretrained(tmp_path / "a")
    weight = whole.encoder.layer[1].intermediate.dense.weight.detach().float().numpy()
    ours = minifpt.trunks.get(tmp_path / "a")
    np.testing.assert_array_equal(ours.h[1].mlp.c_fc.weight.data, weight.T)


@pytest.mark.oracle
def test_buckets_equal_those_of_transformers():
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    theirs = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    t = torch.arange(700)
    for n, most in ((32, 128), (8, 20), (64, 1000), (5, 33)):
        np.testing.assert_array_equal(buckets(700, n, most), theirs(t - t[:, None], True, n, most))
