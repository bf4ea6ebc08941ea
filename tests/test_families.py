"""Every family of trunks: its gradients, its files, and what Transformers computes from what it
saved, and reads of what we save.

A family that is added gets a row in ``CONFIGS``, one in ``ORACLE``, and a folder in ``golden``.
"""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
from conftest import normal, refused
from test_convert import safetensors

import minifpt
from minifpt import cli, fast, trunks
from minifpt import functional as F
from minifpt.experiments.convert import import_weights as convert
from minifpt.experiments.pretrain import pretrain
from minifpt.files import PACKAGE, weights
from minifpt.files.families import as_transformers, family_of, read_config, readable, registry
from minifpt.files.huggingface import read_safetensors
from minifpt.gpt2 import SHAPES
from minifpt.layers import KVCache
from minifpt.trunks import llama
from minifpt.trunks.encoder import Encoder

SMALL = dict(n_layer=2, n_head=2, n_embd=8, n_positions=12, dropout=0.0, initializer_range=0.4)
GOLDEN = Path(__file__).parent / "golden" / "families"
# {model type, and what it is about: what differs in the config}
CONFIGS = {
    "gpt2": {}, "bert": {}, "roberta": {"n_inner": 6, "n_head": 1},
    "longformer": {"window": 4}, "longformer, two windows": {"window": (2, 6)},
    "vit": {"n_inner": 20}, "vit, no biases": {"qkv_bias": False},
    "t5": {"head_dim": 3, "n_buckets": 8, "max_distance": 6},
    "t5, gated": {"gated": True, "activation_function": "gelu_new", "n_inner": 10},
    "umt5": {"n_buckets": 8, "max_distance": 6},
    "llama": {"n_head": 4, "n_group": 2}, "llama, as Qwen2": {"qkv_bias": True, "tied": False},
    "llama, all biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True, "head_dim": 6,
                          "n_head": 4, "n_group": 1},
    "llama, scaled": {"rope_scaling": (8.0, 1.0, 4.0, 9), "rope_base": 50.0},
    "gpt_neox": {"rope_share": 0.5}, "gpt_neox, one part behind the other": {
        "parallel": False, "rope_share": 1.0, "n_inner": 5, "tied": True}}
every = pytest.mark.parametrize("name", CONFIGS)


def config(name, **changes):
    kind = name.split(",")[0]
    own_type = {} if kind == "gpt2" else {"model_type": kind}
    return registry()[kind].config(**own_type | SMALL | CONFIGS[name] | changes)


CAUSAL = [name for name in CONFIGS if config(name).causal]


def trunk_of(name, dtype=np.float32, **changes):
    c = config(name, **changes)
    return family_of(c).trunk(c, 0, dtype)


# ------------------------------------------------------------------------- registry


NAMED = [family for family in registry().values() if family.name]
# A random name of each family.
RANDOM = {family.name: f"random:{family.name}:{'4:' * ('window' in family.shape)}1x4x32"
          for family in NAMED}


def test_each_family_is_tested():
    tested = {name.split(",")[0] for name in CONFIGS}
    assert tested >= {family.model_type for family in NAMED}
    assert {name.split(",")[0] for name in ORACLE} == {*readable()}
    assert {folder.name for folder in GOLDEN.iterdir()} >= {f.model_type for f in NAMED}


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


def test_the_guide_has_a_row_for_each_family():
    guide = (PACKAGE.parent / "docs" / "guide" / "trunk.md").read_text(encoding="utf-8")
    for kind, family in readable().items():
        name = f"`random:{family.name}:".replace("random::", "random:") * (family.name is not None)
        assert re.search(rf"(?m)^\| {family.title} \| `{kind}` \| {name}", guide), family.title


@pytest.mark.parametrize("name", ["random:longformer:2x2x8", "random:bert:8:2x2x8",
                                  "random:longformer:7:2x2x8", "random:bart:2x2x8",
                                  "random:qwen2:2x2x8", "random:bert:2x2/1x8", "random:neox:2x4x8"])
def test_a_name_that_is_no_shape_is_refused(fails, name):
    fails("summary", "--model", name)


# ------------------------------------------------------------------------ computing


@every
def test_gradients(name):
    report = minifpt.gradcheck(trunk_of(name, np.float64), (normal(2, 9, 8),), elementwise=0,
                               directions=1, far=None)
    assert report, str(report)


@every
@pytest.mark.parametrize("parts", [[5, 4], [1] * 9])
def test_tokens_in_parts_and_the_last_tokens_alone_give_what_one_pass_gives(name, parts):
    trunk, x = trunk_of(name, np.float64), normal(2, 9, 8)
    whole, _ = trunk.forward(x)
    np.testing.assert_allclose(trunk.forward(x, last=3)[0], whole[:, -3:], atol=1e-12)
    past = [KVCache(9) for _ in trunk.h]
    if name not in CAUSAL:
        with refused("expected for a causal trunk"):
            trunk.forward(x, past=past)
        return
    with trunk.all_frozen():
        outputs = [trunk.forward(part, need_dx=False, past=past)[0]
                   for part in np.split(x, np.cumsum(parts)[:-1], axis=1)]
    np.testing.assert_allclose(np.concatenate(outputs, 1), whole, atol=1e-12)
    groups = getattr(trunk.config, "n_group", trunk.config.n_head)
    assert past[0].k.shape[:3] == (2, groups, 9)          # each group once


@pytest.mark.parametrize("name", RANDOM)
def test_a_frozen_random_trunk_learns_bit_xor(name):
    task = minifpt.tasks.get("bit-xor", n=2)
    model = minifpt.FPT.for_task(task, f"{RANDOM[name]}@1.41", dropout=0.0)
    before = {name: p.data.copy() for name, p in model.named_parameters()}
    history = minifpt.train(model, task, steps=150, lr=1e-2, batch_size=32, eval_every=150,
                            schedule="constant", warmup=0, progress=False)
    assert history[-1]["test_accuracy"] == 1
    for name, p in model.named_parameters():
        assert (p.data == before[name]).all() == (p.group in ("attn", "mlp")), name


@pytest.mark.parametrize("T", [7, 130])
def test_a_bias_may_hide_tokens_but_not_all_of_them(T):
    """In tiles, too.  A bias of the causal mask is the causal mask."""
    qkv, bias = normal(3, 3, 2, T, 4), np.array([F.causal_mask(T, T, float)] * 2)
    for ops in (F, fast):
        np.testing.assert_allclose(ops.attention(*qkv, causal=False, bias=bias)[0],
                                   ops.attention(*qkv)[0], atol=1e-12)
    bias[1, 2] = [-np.inf] * 3 + [0.0] * (T - 3)          # token 2 reads later ones alone
    assert np.isfinite(F.attention(*qkv, causal=False, bias=bias)[0]).all()
    with refused("the bias lets token 2 of head 1 read no token"):
        F.attention(*qkv, bias=bias)


@pytest.mark.parametrize("T, first", [(9, 5), (4, 3)])       # T, and the first token that changes
def test_a_window_ends_where_it_says(T, first):
    near, far = normal(1, T, 8), normal(1, T, 8, seed=1)
    far[:, :first] = near[:, :first]
    trunk = trunk_of("longformer", np.float64, n_layer=1)
    y, z = (trunk.forward(x)[0] for x in (near, far))
    np.testing.assert_array_equal(y[:, :first - 2], z[:, :first - 2])     # 3 reads tokens 1 to 5
    assert (y[:, first - 2] != z[:, first - 2]).any()


def test_a_llama_has_by_default_as_many_parameters_as_a_gpt2():
    llama, gpt2 = (trunks.get(f"random:{kind}6x4x128") for kind in ("llama:", ""))

    def in_blocks(trunk):
        return sum(p.data.size for p in trunk.parameters() if p.group in ("attn", "mlp"))
    assert abs(in_blocks(llama) / in_blocks(gpt2) - 1) < 0.02
    grouped = trunks.get("random:llama:6x4/2x128")
    assert grouped.h[0].attn.k_proj.weight.data.shape == (128, 64)


@pytest.mark.parametrize("name, changes, message", [
    *((kind, {"n_head": 3}, "8 channels cannot be divided into 3 heads")
      for kind in ("bert", "llama", "gpt_neox")), ("bert", {"causal": True}, "causal"),
    ("bert", {"head_dim": 3}, "8 channels cannot be divided into 2 heads"),
    ("longformer", {"window": 3}, "window is 3, expected an even number"),
    ("longformer", {"window": (2, 2, 2)}, "3 windows, expected one for each of 2 blocks"),
    ("t5", {"n_buckets": 3}, "3 buckets"),
    ("bert", {"model_type": "gpt2"}, "model_type is 'gpt2', expected one of bert"),
    *((kind, {"activation_function": "swish"}, "activation_function is 'swish'")
      for kind in ("bert", "gpt_neox")),
    ("bert", {"n_inner": 0}, "n_inner"), ("t5", {"gated": 1}, "gated"),
    ("llama", {"n_group": 3}, "a number of groups"), ("llama", {"n_embd": 20}, "an even number"),
    ("llama", {"n_embd": "x"}, "n_embd"), ("llama", {"n_layer": 0}, "n_layer"),
    ("llama", {"dropout": 1}, "dropout"), ("llama", {"rope_base": 0}, "rope_base"),
    *((kind, {"causal": False}, "causal is False") for kind in ("llama", "gpt_neox")),
    *((kind, {"model_type": "gpt2"}, f"expected one of {kind}") for kind in ("llama", "gpt_neox")),
    ("llama", {"o_bias": True}, "o_bias needs qkv_bias"),
    ("llama", {"qkv_bias": True, "mlp_bias": True}, "both biases need o_bias"),
    ("llama", {"rope_scaling": (8, 1, 4)}, "not enough values"),
    ("llama", {"rope_scaling": (0, 1, 4, 9)}, "factor is 0"),
    ("llama", {"rope_scaling": (8, 4, 4, 9)}, "low_freq_factor is 4, expected less"),
    *(("gpt_neox", {"rope_share": share}, "even number of rotated") for share in (0.2, 0.3, 2)),
    ("gpt_neox", {"parallel": 1}, "parallel"), ("gpt_neox", {"head_dim": 8}, "2 heads of 8 chan")])
def test_a_config_that_cannot_be_is_refused(name, changes, message):
    with refused(message):
        config(name, **changes)


# ----------------------------------------------------------------------------- files


@every
def test_a_model_is_saved_loaded_and_converted(name, tmp_path):
    """A trunk, and where there is one its language model."""
    trunk = trunk_of(name)
    family, x = family_of(trunk.config), normal(2, 9, 8).astype(np.float32)
    models = [trunk, *([family.language_model(trunk)] if name in CAUSAL and (
        family.language_model) else [])]
    for i, model in enumerate(models):
        model.save(tmp_path / f"{i}.npz", np.float32)
        model.save(tmp_path / f"{i}")
        convert(tmp_path / f"{i}", tmp_path / f"{i} again.npz", "float32")
        for file in (tmp_path / f"{i}{end}" for end in (".npz", "", " again.npz")):
            again = trunks.get(file, dropout=0.25)
            assert type(again) is family.trunk and again.config.dropout == 0.25
            np.testing.assert_allclose(again.forward(x)[0], trunk.forward(x)[0], atol=1e-5)
            if i:
                lm = trunks.language_model(file)
                assert type(lm) is type(model) and lm.config == trunk.config
                for (key, p), q in zip(model.named_parameters(), lm.parameters(), strict=True):
                    assert np.array_equal(p.data, q.data), key
    other = minifpt.GPT2 if name != "gpt2" else Encoder
    with refused("model_type is '.*', expected one of"):
        other.from_pretrained(tmp_path / "0")


def change(folder, changes):
    """Rewrite a folder's config, and return the folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def change_tensors(folder, edit):
    """Rewrite a folder's tensors, {name: array}, and return the folder."""
    path = folder / "model.safetensors"
    tensors = {name: np.array(tensor.read()) for name, tensor in read_safetensors(path).items()}
    path.write_bytes(safetensors({name: np.ascontiguousarray(array)
                                  for name, array in edit(tensors).items()}))
    return folder


LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}


@pytest.mark.parametrize("name, changes, message", [
    ("llama", {"rope_scaling": LLAMA3, "rope_parameters": None}, "original_max_position_embedd"),
    ("llama", {"rope_scaling": {"type": "linear"}}, "type is 'linear', minifpt builds only defau"),
    ("llama", {"rope_scaling": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"), ("llama", {"head_dim": 8}, "has shape"),
    ("llama", {"attention_bias": True}, "lacks 'h.0.attn.k_proj.bias'"),
    ("llama", {"attention_bias": None}, "attention_bias is null"),
    ("llama", {"num_hidden_layers": 3}, "holds 2 blocks"),
    ("llama", {"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number"),
    ("llama", {"vocab_size": 12}, "wte.weight"), ("llama", {"num_key_value_heads": 3}, "groups"),
    ("llama, as Qwen2", {"use_sliding_window": True}, "sliding"),
    ("llama", {"intermediate_size": 10 ** 9}, "up_proj"), ("llama", {"rms_norm_eps": 0}, "rms_no"),
    ("llama", {"tie_word_embeddings": False}, "lm_head"),
    ("llama", {"rope_parameters": [1]}, "rope_parameters is .1., expected an object"),
    ("llama", {"tie_word_embeddings": "no"}, "config.json: tie_word_embeddings is 'no'"),
    ("bert", {"intermediate_size": 16},
     r"'h.0.mlp.c_fc.weight' has shape \(8, 32\), expected \(8, 16\)"),
    ("bert", {"is_decoder": True}, "is_decoder is True, minifpt builds only False"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_k"),
    ("bert", {"hidden_dropout_prob": 0.2}, "hidden_dropout_prob 0.2, attention_probs_dropout_prob"),
    ("bert", {"hidden_act": "quick_gelu"}, "bad config: EncoderConfig: activation_function"),
    *[("bert", {key: value}, f"{key} must be a whole number, at least 1, got {value!r}")
      for key in ("hidden_size", "max_position_embeddings", "num_attention_heads", "vocab_size")
      for value in (None, "8", 8.0, 0, -1)],
    ("bert", {"layer_norm_eps": None}, "layer_norm_eps is null"),
    ("bert", {"hidden_act": None}, "hidden_act is null"),
    *[("bert", {"num_hidden_layers": n}, f"holds 2 blocks, its config says n_layer {n}")
      for n in (3, 10 ** 9)],
    ("bert", {"max_position_embeddings": 10 ** 12}, "'wpe.weight' has shape"),
    *[("bert", {"model_type": kind}, f"model_type is {kind}, expected one of bert, .*llama".replace(
        "mamba", "'mamba'")) for kind in ("mamba", None)],
    ("bert", {"model_type": ["bert"]}, "model_type is"),
    ("bert", {"model_type": "gpt2"}, "model_type is 'gpt2', expected one of bert"),
    ("bert", {"model_type": "t5", "d_kv": 8}, "d_ff must be a whole number"),
    ("longformer", {"attention_window": None}, "attention_window is null"),
    *[("longformer", {"attention_window": windows}, f"{len(windows)} windows, expected one for")
      for windows in ([4, 6, 8], [])],
    *[("roberta", {"pad_token_id": value}, "pad_token_id must be a whole number")
      for value in (None, [], -1)],
    ("gpt_neox", {"attention_bias": False}, "attention_bias is False"),
    ("gpt_neox", {"rope_parameters": {"rope_type": "linear"}}, "rope_type is 'linear'"),
    ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": "x"}}, "rope_share"),
    ("gpt_neox", {"hidden_dropout": 0.2}, "one dropout .* dropout=, on the command line --dropout"),
    ("gpt_neox", {"head_dim": 2}, "head_dim"),
    *[("gpt_neox", {"rope_parameters": None, key: 0.75, **old},
       f"{key} is 0.75, and rotary_.*make them equal")
      for key in ("rope_theta", "partial_rotary_factor")
      for old in ({}, {"rotary_pct": 0.5, "rotary_emb_base": 50.0})],
    *[(name, {key: 4}, f"is .*, and {key}, as Transformers calls it, 4: make them equal")
      for name in ("gpt2", "t5", "umt5") for key in ("hidden_size", "num_attention_heads")],
    *[("t5", {"d_kv": value}, "d_kv must be a whole number") for value in (None, "3", 0)],
    ("t5", {"d_kv": 10 ** 9}, "'h.0.attn.c_attn.weight' has shape"),
    ("t5", {"num_heads": 10 ** 9}, "'relative.weight' has shape"),
    ("t5, gated", {"is_gated_act": 1}, "gated is 1"),
    *[("t5", {"dense_act_fn": name}, f"activation_function is '{name}'")
      for name in ("7", "x-relu", "None")]])
def test_a_config_that_does_not_fit_its_folder_is_refused(tmp_path, name, changes, message):
    trunk = trunk_of(name)
    model = family_of(trunk.config).language_model(trunk) if name in CAUSAL else trunk
    model.save(tmp_path / "a")
    with refused(message):
        type(model).from_pretrained(change(tmp_path / "a", changes))


def test_an_old_t5_says_by_one_field_whether_it_has_a_gate():
    raw = {"model_type": "t5", "num_layers": 1, "num_heads": 2, "d_model": 4, "d_ff": 8, "d_kv": 2,
           "vocab_size": 9}
    for field, gated, function in (("relu", False, "relu"), ("gated-gelu", True, "gelu_new"),
                                   ("gated-silu", True, "silu")):
        settings = read_config(raw | {"feed_forward_proj": field}, "config.json")
        assert (settings["gated"], settings["activation_function"]) == (gated, function)


def test_other_fields_of_the_rotary_angles_are_not_the_model_s(tmp_path):
    trunk_of("llama").save(tmp_path / "a")
    raw = json.loads((tmp_path / "a" / "config.json").read_text())
    folder = change(tmp_path / "a", {"rope_parameters": raw["rope_parameters"] | {
        "vocab_size": 5, "num_hidden_layers": 7}})
    assert trunks.get(folder).config == config("llama")


def test_the_old_names_of_pythia_s_files_are_read(tmp_path):
    lm = trunks.NeoXLM(config("gpt_neox", rope_base=50.0), seed=2)
    lm.save(tmp_path / "a")
    change(tmp_path / "a", {"rope_parameters": None, "rope_theta": 50.0})  # as version 4 wrote it
    change_tensors(tmp_path / "a", lambda tensors: {
        name.replace("lm_head", "embed_out"): array for name, array in tensors.items()} | {
            f"gpt_neox.layers.{i}.attention.{name}": np.ones(3, np.float32)
            for i in range(2) for name in ("bias", "masked_bias", "rotary_emb.inv_freq")})
    again = trunks.language_model(tmp_path / "a")
    assert again.config == lm.config
    np.testing.assert_array_equal(again.logits([[1, 2, 3]]), lm.logits([[1, 2, 3]]))


@pytest.mark.parametrize("prefix", ["_orig_mod.", "module.", "module._orig_mod."])
@pytest.mark.parametrize("name", ["gpt2", "bert", "t5"])
def test_wrappers_before_names_and_biases_of_zeros_are_left_out(tmp_path, prefix, name):
    """Of torch.compile and DataParallel; the T5 of 2020 has norms with biases, which are 0."""
    trunk = trunk_of(name)
    trunk.save(tmp_path / "a")
    old = {"bert": ("LayerNorm.weight", "LayerNorm.gamma")}.get(name, ("", ""))
    change_tensors(tmp_path / "a", lambda tensors: {
        prefix + key.replace(*old): array for key, array in tensors.items()} | {
            f"encoder.{key}layer_norm.bias": np.zeros(8, np.float32)
            for key in ("block.0.layer.0.", "block.1.layer.1.", "final_") if name == "t5"})
    again = trunks.get(tmp_path / "a")
    for (key, p), q in zip(trunk.named_parameters(), again.parameters(), strict=True):
        np.testing.assert_allclose(p.data, q.data, rtol=1e-6, err_msg=key)
    if name == "t5":
        change_tensors(tmp_path / "a", lambda tensors: tensors | {
            "encoder.final_layer_norm.bias": np.ones(8, np.float32)})
        with refused("also holds"):
            trunks.get(tmp_path / "a")


def test_angles_are_scaled_by_their_wave_length():
    """Llama 3.1: short waves stay, those that did not turn once are stretched, others between."""
    c = config("llama, scaled", head_dim=12, rope_scaling=(8.0, 1.0, 4.0, 40), rope_base=50.0)
    expected = []
    for i in range(6):
        length = 2 * np.pi * 50 ** (i / 6)
        between = (40 / length - 1) / (4 - 1)
        expected.append(1 if length < 40 / 4 else 1 / 8 if length > 40 else
                        between + (1 - between) / 8)
    assert 1 == expected[0] > expected[1] > expected[2] > expected[3] == 1 / 8
    np.testing.assert_allclose(llama.rope_scale(c), expected, rtol=1e-12)


@pytest.mark.parametrize("n, size", [(9, [48, 48]), (12, [192, 16])])
def test_a_vit_of_a_square_number_of_positions_has_square_images(n, size):
    raw, _ = as_transformers(config("vit", n_positions=n), [])
    assert (raw["image_size"], raw["patch_size"]) == (size, 16)


def test_a_head_that_differs_from_a_tied_table_is_a_head_of_its_own(tmp_path):
    lm, table = trunks.LlamaLM(config("llama")), "model.embed_tokens.weight"
    lm.save(tmp_path / "m")                               # Transformers 5 does so, too
    for more, is_tied in ((0, True), (1, False)):
        change_tensors(tmp_path / "m", lambda t, more=more: t | {"lm_head.weight": t[table] + more})
        loaded = trunks.LlamaLM.from_pretrained(tmp_path / "m")
        assert loaded.config.tied == is_tied
        np.testing.assert_array_equal(loaded.lm_head.weight.data, lm.wte.weight.data + more)
    change_tensors(tmp_path / "m", lambda t: {key: a for key, a in t.items() if key != table})
    with refused("lacks 'wte.weight'"):                   # the head is not the table
        trunks.LlamaLM.from_pretrained(change(tmp_path / "m", {"tie_word_embeddings": False}))


@pytest.mark.parametrize("kind, table", [("llama", "model.embed_tokens.weight"),
                                         ("gpt2", "transformer.wte.weight")])
def test_a_tied_table_may_be_saved_as_the_head_alone(tmp_path, kind, table):
    """safetensors.torch.save_model keeps the first of two names of one tensor."""
    model = {"llama": trunks.LlamaLM, "gpt2": minifpt.LanguageModel}[kind]
    lm = model(config(kind))
    lm.save(tmp_path / "m")
    change_tensors(tmp_path / "m", lambda tensors: {
        "lm_head.weight" if name == table else name: a for name, a in tensors.items()})
    loaded = model.from_pretrained(tmp_path / "m")
    np.testing.assert_array_equal(loaded.wte.weight.data, lm.wte.weight.data)


def test_a_llama_without_a_head_is_converted_as_a_trunk(tmp_path):
    """Transformers' LlamaModel, whose config says that its table is not tied."""
    lm = trunks.LlamaLM(config("llama"), seed=2)
    lm.save(tmp_path / "a")
    change(tmp_path / "a", {"tie_word_embeddings": False})
    trunk = trunks.get(str(convert(tmp_path / "a", tmp_path / "b.npz", "float32")))
    for (name, p), q in zip(lm.trunk.named_parameters(), trunk.parameters(), strict=True):
        assert np.array_equal(p.data, q.data), name


def test_a_family_without_a_language_model_is_converted_as_a_trunk(tmp_path, monkeypatch):
    trunks.LlamaLM(config("llama")).save(tmp_path / "a")
    monkeypatch.setitem(registry(), "llama", registry()["llama"]._replace(language_model=None))
    assert "lm_head.weight" not in np.load(convert(tmp_path / "a", tmp_path / "b.npz"))
    assert type(trunks.get(tmp_path / "b.npz")) is trunks.Llama
    with refused("has no language model of a Llama, only the trunk"):
        trunks.language_model(tmp_path / "a")
    with refused("has no language model of a Llama, which language needs"):
        pretrain("language", tmp_path / "c", text=["x"], shape="llama:1x2x8")


@pytest.mark.parametrize("name", ["minillama-tiny", "minigpt-tiny", "minigpt-language"])
def test_a_trunk_that_ships_predicts_held_out_text(name):
    """Llama's pretraining came to 1.632 nats a byte on all of it; letters alone have about 3."""
    text = weights.shipped("held-out.txt").read_bytes()[:4000]
    lm = trunks.language_model(name)
    assert 1.2 < lm.perplexity(np.frombuffer(text, np.uint8).astype(int))["nats_per_token"] < 2.1


ONLY_SIZES = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8,
              "intermediate_size": 24, "max_position_embeddings": 12, "vocab_size": 7}


@pytest.mark.parametrize("fields, settings", [
    ({"model_type": "bert"}, {"n_positions": 12, "layer_norm_epsilon": 1e-12,
                              "activation_function": "gelu", "dropout": 0.1}),
    ({"model_type": "roberta"}, {"n_positions": 10}), ({"model_type": "vit"}, {"dropout": 0.0}),
    ({"model_type": "longformer"}, {"n_positions": 10, "window": 512}),
    ({"model_type": "gpt2", "n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 12},
     {"n_embd": 8, "activation_function": "gelu_new"})])
def test_a_config_without_some_fields_is_read_as_transformers_reads_it(fields, settings):
    assert read_config(ONLY_SIZES | fields, "config.json").items() >= settings.items()


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
def test_a_folder_whose_tensors_do_not_fit_is_refused(tmp_path, name, array, message):
    trunk_of("bert").save(tmp_path / "a")
    array = array if array is None or array.dtype.kind != "f" else array.astype(np.float32)
    with refused(message):
        trunks.get(change_tensors(tmp_path / "a", lambda tensors: {
            key: a for key, a in (tensors | {name: array}).items() if a is not None}))


@pytest.mark.parametrize("name", ["llama:1x2/1x8", "neox:1x2x16", "bert:1x2x8", "vit:1x2x8",
                                  "t5:1x2x8", "longformer:8:1x2x8"])
def test_commands_take_a_family(name, cwd, capsys):
    model, is_causal = ["--model", f"random:{name}@0.8"], name[0] in "ln" and "long" not in name
    source, other = ("language", "masked") if is_causal else ("masked", "language")
    text = ["--text", weights.shipped("held-out.txt"), "--shape", name]
    for argv in (["train", "bit-xor", *model, "--steps", 3, "--out", "run"],
                 ["train", "bit-xor", *model, "--steps", 4, "--out", "run", "--resume"],
                 ["steps", "bit-xor", *model, "--out", "run.html"],
                 ["attention", "run", "--examples", 2],
                 ["convert", "run", "--out", "folder"],
                 ["summary", "--model", "folder+attn=statistics:folder"],
                 ["pretrain", source, *text, "--steps", 2, "--batch-size", 2, "--out", "small"],
                 *[["generate", "ab", "--model", "small.npz", "--tokens", 3]] * is_causal,
                 ["convert", "small.npz", "--out", "again"]):
        assert cli.main(argv) == 0, capsys.readouterr().err
    a, b = (trunks.get(path) for path in ("small.npz", "again"))
    for (key, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        np.testing.assert_allclose(p.data, q.data, rtol=1e-6, err_msg=key)
    assert cli.main(["pretrain", other, *text]) == 2
    assert "a causal mask" in capsys.readouterr().err


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
    outer = family_of(trunk.config).outer
    others = "_global", *outer.get("wpe", ()), *outer.get("wpe.weight", ())
    for name, array in ours.items():
        if not any(part in name for part in others):
            np.testing.assert_array_equal(array, theirs[name], name)


# ---------------------------------------------------------------------------- oracle


SIZES = dict(hidden_size=32, num_attention_heads=4, intermediate_size=48, num_hidden_layers=2,
             max_position_embeddings=150)
ONE_HEAD = SIZES | {"num_attention_heads": 1, "hidden_size": 20, "intermediate_size": 7}
IMAGES = {key: SIZES[key] for key in (*SIZES,) if key != "max_position_embeddings"}
T5 = dict(d_model=32, num_heads=4, d_kv=8, d_ff=48, num_layers=2)
GPT2 = dict(n_layer=2, n_head=4, n_embd=32, n_positions=150)
SCALED = {"rope_parameters": LLAMA3 | {"rope_theta": 500.0, "original_max_position_embeddings": 40}}
# (class in Transformers, options, tokens).  One whose name ends in CausalLM or HeadModel needs a
# language model of ours.  Where the config has a pad_token_id by default, make it None: PyTorch
# gives that row of the table no gradient.
ORACLE = {
    "gpt2": ("GPT2LMHeadModel", GPT2, 120), "gpt2, relu": ("GPT2Model", GPT2 | {
        "activation_function": "relu", "n_layer": 3, "n_head": 1, "n_embd": 8}, 7),
    "gpt2, gelu": ("GPT2LMHeadModel", GPT2 | {
        "activation_function": "gelu", "layer_norm_epsilon": 1e-3, "n_head": 32}, 24),
    "gpt2, tanh": ("GPT2LMHeadModel", GPT2 | {
        "activation_function": "gelu_pytorch_tanh", "n_inner": 128, "n_layer": 8, "n_head": 2}, 24),
    **{f"gpt2, as wide as {name}": ("GPT2Model", SHAPES[name] | {"n_layer": n, "n_positions": 90},
                                    80)
       for name, n in (("gpt2", 3), ("gpt2-xl", 1), ("minigpt", 6))},
    "bert": ("BertModel", SIZES, 120), "bert, one head": ("BertModel", ONE_HEAD, 9),
    "bert, relu": ("BertModel", SIZES | {"hidden_act": "relu", "type_vocab_size": 5}, 40),
    "bert, masked language model": ("BertForMaskedLM", SIZES | {"hidden_act": "gelu_python"}, 7),
    "bert, classifier": ("BertForSequenceClassification", SIZES | {"layer_norm_eps": 1e-3}, 7),
    "roberta": ("RobertaModel", SIZES | {"pad_token_id": 3}, 7),
    "roberta, masked language model": ("RobertaForMaskedLM", SIZES, 30),
    "xlm-roberta": ("XLMRobertaModel", SIZES, 30), "camembert": ("CamembertForMaskedLM", SIZES, 7),
    "longformer": ("LongformerModel", SIZES | {"attention_window": 8}, 64),
    "longformer, windows": ("LongformerModel", SIZES | {"attention_window": [16, 16]}, 96),
    "longformer, two windows": ("LongformerModel", SIZES | {"attention_window": [4, 10]}, 60),
    "vit": ("ViTModel", IMAGES | {"image_size": 48, "patch_size": 4}, 120),
    "vit, oblong": ("ViTModel", IMAGES | {"image_size": [16, 24], "patch_size": 8,
                                          "qkv_bias": False}, 6),
    "vit, classifier": ("ViTForImageClassification", IMAGES | {"image_size": 12, "patch_size": 4,
                                                               "hidden_act": "gelu_new"}, 9),
    "t5": ("T5EncoderModel", T5, 200), "t5, odd width": ("T5EncoderModel", T5 | {
        "d_kv": 5, "relative_attention_num_buckets": 9, "relative_attention_max_distance": 20}, 40),
    "t5, whole model": ("T5ForConditionalGeneration", T5 | {"d_kv": 12}, 7),
    "t5, classifier": ("T5ForSequenceClassification", T5, 7),
    "t5, gated": ("T5EncoderModel", T5 | {"feed_forward_proj": "gated-gelu"}, 30),
    "t5, gated by silu": ("T5EncoderModel", T5 | {"feed_forward_proj": "gated-silu"}, 7),
    "t5, Flan's": ("T5EncoderModel", T5 | {"feed_forward_proj": "gated-gelu",
                                           "dense_act_fn": "gelu"}, 30),
    "mt5": ("MT5EncoderModel", T5, 7), "umt5": ("UMT5EncoderModel", T5, 200),
    "umt5, whole model": ("UMT5ForConditionalGeneration", T5 | {"d_kv": 5}, 7),
    "llama": ("LlamaForCausalLM", SIZES | {"num_key_value_heads": 2}, 100),
    "llama, one group": ("LlamaForCausalLM", SIZES | {
        "num_attention_heads": 6, "hidden_size": 48, "num_key_value_heads": 1, "rms_norm_eps": 1e-4,
        "tie_word_embeddings": True, "rope_parameters": {"rope_theta": 500.0}}, 40),
    "llama, SmolLM2's proportions": ("LlamaForCausalLM", SIZES | {
        "num_hidden_layers": 4, "num_attention_heads": 9, "hidden_size": 144,
        "num_key_value_heads": 3, "intermediate_size": 384, "tie_word_embeddings": True}, 7),
    "llama, biases": ("LlamaForCausalLM", SIZES | {
        "attention_bias": True, "mlp_bias": True, "head_dim": 6, "num_key_value_heads": 2}, 30),
    "llama, a bias": ("LlamaModel", SIZES | {"mlp_bias": True}, 7),
    "llama, scaled": ("LlamaForCausalLM", SIZES | SCALED, 140),
    "qwen2": ("Qwen2ForCausalLM", SIZES | {"num_key_value_heads": 2}, 7),
    "qwen2, tied": ("Qwen2ForCausalLM", SIZES | {
        "hidden_size": 24, "intermediate_size": 20, "num_key_value_heads": 4,
        "tie_word_embeddings": True}, 100),
    "gpt_neox": ("GPTNeoXForCausalLM", SIZES, 100),
    "gpt_neox, half": ("GPTNeoXForCausalLM", SIZES | {
        "num_attention_heads": 3, "hidden_size": 48, "intermediate_size": 70, "rotary_pct": 0.5,
        "rotary_emb_base": 500.0, "use_parallel_residual": False, "tie_word_embeddings": True}, 40),
    "gpt_neox, whole": ("GPTNeoXModel", ONE_HEAD | {"rotary_pct": 1.0, "hidden_act": "relu"}, 7)}
LANGUAGE = {name: row for name, row in ORACLE.items() if row[0].endswith(("CausalLM", "HeadModel"))}


def theirs_of(kind, options, size=0.1):
    """Return a model of Transformers, no weight of which is as it was drawn."""
    torch, transformers = (pytest.importorskip(name) for name in ("torch", "transformers"))
    torch.manual_seed(0)
    cls = getattr(transformers, kind)
    tokens = {} if "ViT" in kind else {"vocab_size": 11}
    return nudged(cls(cls.config_class(**options | tokens)), size)


def nudged(model, size=0.1):
    """Return a model with noise on each weight, without dropout."""
    import torch
    with torch.no_grad():
        for p in model.parameters():
            p += torch.randn_like(p) * size
    return model.eval()


def hidden_states(trunk, x):
    """Return Transformers' last hidden states of embeddings x; of a ViT behind its patches."""
    kind = type(trunk).__name__
    if kind == "ViTModel":
        x = trunk.embeddings.dropout(
            x + trunk.embeddings.position_embeddings[:, 1:x.shape[1] + 1])
        for layer in trunk.layers:
            x = layer(x)
        return trunk.layernorm(x)
    run = trunk.encoder if "T5" in kind else trunk
    return run(inputs_embeds=x)[0]


def relative_error(got, want, least=0.0):
    """Return the largest difference over the largest entry, or over ``least``."""
    assert got.shape == want.shape
    return np.abs(got - want).max() / max(np.abs(want).max(), least)


def with_gradients(model, folder):
    """Save a model whose weights are its gradients: so their layout is read as that of weights."""
    import torch
    with torch.no_grad():
        for key, p in model.named_parameters():
            p.copy_(torch.zeros_like(p) if p.grad is None or "token_type" in key else p.grad)
    model.save_pretrained(folder)
    return folder


@pytest.mark.oracle
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ORACLE)
def test_transformers_computes_the_same_and_reads_what_is_saved(tmp_path, name, dtype):
    """Hidden states, dx and the gradient of each parameter, from its folder and from ours.
    Transformers computes rotary angles, Longformer's attention and RMS norms in float32."""
    kind, options, T = ORACLE[name]
    whole = theirs_of(kind, options, 0.02 if "wide" in name else 0.1)
    import torch
    import transformers
    whole.to(getattr(torch, dtype)).save_pretrained(tmp_path / "a", max_shard_size=(
        "20KB" if T == 7 else "5GB"))
    is_exact = dtype == "float64" and name.startswith(("gpt2", "bert", "vit", "xlm", "cam", "rob"))
    limit = 1e-10 if is_exact else 1e-4
    ours = trunks.get(tmp_path / "a", dtype=np.dtype(dtype))
    x, dy = normal(2, 2, T, ours.config.n_embd).astype(dtype)
    y, cache = ours.forward(x)
    dx = ours.backward(dy, cache)
    ours.save(tmp_path / "b")
    [saved] = json.loads((tmp_path / "b" / "config.json").read_text())["architectures"]
    for i, model in enumerate((whole.base_model, getattr(transformers, saved).from_pretrained(
            tmp_path / "b"))):
        model = model.to(getattr(torch, dtype)).eval()
        start = torch.tensor(x, requires_grad=True)
        out = hidden_states(model, start)
        out.backward(torch.tensor(dy))
        wanted = {"hidden": (y, out.detach().numpy()), "dx": (dx, start.grad.numpy())}
        folder = with_gradients(model, tmp_path / f"gradients {i}")
        grads = trunks.get(folder, dtype=np.dtype(dtype))
        for (key, p), q in zip(ours.named_parameters(), grads.parameters(), strict=True):
            scale = np.ones(1)
            if "c_attn.weight" in key and "t5" in name:
                scale = np.ones(p.data.shape[1])          # the queries are sqrt(D) W
                scale[:len(scale) // 3] = ours.config.head_dim
            wanted[key] = p.grad * scale, q.data
        least = 1e-2 * np.abs(dx).max()                   # the bias of keys has no gradient
        for key, (got, want) in wanted.items():
            error = relative_error(got, want, least)
            # Our folder holds the sum of positions and token types in float32.
            assert error < max(limit, 1e-6 * i), f"{key}: relative error {error:.1e}"


class KeepsAll(np.random.Generator):
    """A generator with which dropout sets nothing to 0, and so only divides by 1 - p."""

    def random(self, size=None, dtype=np.float64, out=None):
        return np.ones(size, dtype)


@pytest.mark.oracle
@pytest.mark.parametrize("name", [
    "gpt2", "bert", "roberta", "longformer", "vit", "gpt_neox", "gpt_neox, half"])
def test_dropout_acts_where_transformers_has_it(tmp_path, monkeypatch, name):
    kind, options, T = ORACLE[name]
    theirs_of(kind, options).save_pretrained(tmp_path)
    import torch
    import transformers
    monkeypatch.setattr(torch.nn.functional, "dropout",
                        lambda x, p=0.5, training=True, inplace=False: x / (1 - p * training))
    ours = trunks.get(tmp_path, dtype=np.float64, dropout=0.3)
    rates = dict.fromkeys(family_of(ours.config).dropouts, 0.3)
    theirs = getattr(transformers, kind).from_pretrained(
        tmp_path, attn_implementation="eager", dtype=torch.float64, **rates).base_model.train()
    x = normal(2, T, ours.config.n_embd)
    y, _ = ours.forward(x, train=True, rng=KeepsAll(np.random.PCG64()))
    assert relative_error(y, ours.forward(x)[0]) > 0.01
    assert relative_error(y, hidden_states(theirs, torch.tensor(x)).detach().numpy()) < 1e-6


@pytest.mark.oracle
@pytest.mark.parametrize("name", LANGUAGE)
def test_transformers_language_model_gives_the_same(tmp_path, name):
    """Logits, every gradient of the loss, the text that follows; and it reads what is saved."""
    kind, options, T = LANGUAGE[name]
    model = theirs_of(kind, options)
    import torch
    import transformers
    model.save_pretrained(tmp_path / "a")
    lm = trunks.language_model(tmp_path / "a")
    lm.save(tmp_path / "b")
    again, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "b", output_loading_info=True)
    assert type(again) is type(model) and not any(report.values()), report
    family = family_of(lm.config)
    positions = f"{family.outer.get('wpe', ('no positions',))[0]}.weight"
    for (key, p), q in zip(model.named_parameters(), again.parameters(), strict=True):
        unread = family.constants["first_row"] if key.endswith(positions) else 0     # rows
        assert torch.equal(p[unread:], q[unread:]), key
    ids, targets = np.random.default_rng(0).integers(0, 11, (2, 2, T))
    text = model.generate(torch.tensor(ids[:, :7]), max_new_tokens=40, do_sample=False,
                          attention_mask=torch.ones(2, 7), pad_token_id=0, eos_token_id=None)
    assert np.array_equal(lm.generate(ids[:, :7], 40, temperature=0), text.numpy())
    want, wanted = model(torch.tensor(ids)).logits, torch.tensor(targets).flatten()
    torch.nn.functional.cross_entropy(want.flatten(0, 1), wanted).backward()
    logits, cache = lm.forward(ids)
    assert relative_error(logits, want.detach().numpy()) < 1e-4
    lm.backward(F.cross_entropy_backward(np.float32(1), F.cross_entropy(logits, targets)[1]), cache)
    grads = trunks.language_model(with_gradients(model, tmp_path / "gradients"))
    for (key, p), q in zip(lm.named_parameters(), grads.parameters(), strict=True):
        assert relative_error(p.grad, q.data) < 1e-4, key


def others(value):
    """Return other values of a field of a config, of its type."""
    if isinstance(value, (list, dict)):
        return [[other, *value[1:]] for other in others(value[0])] if value and (
            isinstance(value, list)) else []
    if value is None:
        return [True, 1, 0.5, "gelu"]
    if isinstance(value, (bool, str)):
        return [not value] if isinstance(value, bool) else [
            "relu", "gelu_new", "gated-silu", "sliding_attention", "linear"]
    return [2 * value, value + 1, value / 2 + 0.1]


@pytest.mark.oracle
@pytest.mark.parametrize("kind", readable())
def test_each_field_that_transformers_computes_with_is_read_or_refused(kind, tmp_path):
    """A folder with another value is refused, or has Transformers' hidden states, whether its
    layout is another one or not.  A field that is left out has its default, but for the sizes,
    which every file has."""
    transformers = pytest.importorskip("transformers")
    import torch
    cls = getattr(transformers, readable()[kind].model)
    options = next(row[1] for name, row in ORACLE.items() if name == kind)
    raw = theirs_of(cls.__name__, options).config.to_dict()
    rope = raw.get("rope_parameters") or {}
    changed = [(key, {key: other}) for key, value in raw.items() for other in others(value)]
    changed += [(key, {"rope_parameters": rope | {key: other}})
                for key in {**rope, **dict.fromkeys(["partial_rotary_factor"] if rope else [])}
                for other in others(rope.get(key))]
    refusals = 0
    for key, fields in changed:
        try:
            model = nudged(cls(cls.config_class.from_dict(raw | fields)))
            x = torch.randn(2, 8, model.config.hidden_size)
            want = hidden_states(model, x).detach().numpy()
            model.save_pretrained(tmp_path)
        except Exception:                                 # Transformers refuses it
            continue
        (tmp_path / "config.json").write_text(json.dumps(raw | fields))
        try:
            trunk = trunks.get(tmp_path)
        except ValueError:
            refusals += 1
        else:
            np.testing.assert_allclose(trunk.forward(x.numpy())[0], want, atol=1e-4,
                                       err_msg=f"{key} in {fields}")
    assert 0 < refusals < len(changed) / 2
    raw = cls.config_class().to_dict()
    settings = read_config(raw, "config.json")
    for key, value in raw.items():
        if type(value) is not int and key != "model_type" or key in ("attention_window",
                                                                     "pad_token_id"):
            fewer = {field: raw[field] for field in raw if field != key}
            assert read_config(fewer, "config.json") == settings, key
