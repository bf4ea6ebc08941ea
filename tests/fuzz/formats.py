"""What is fuzzed: for each format a valid file, how it is damaged, how it is read, and what must
hold for the result."""

import gzip
import io
import json
import os
import re
import signal
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

import minifpt
from minifpt import tasks, training
from minifpt.exercises import operations, own
from minifpt.experiments import runs as run_folders
from minifpt.experiments import runs_table
from minifpt.experiments.compare import run as train
from minifpt.files import data, tokenizer
from minifpt.files.runs import COLUMNS, History, Run, open_folder
from minifpt.optim import Adam
from minifpt.tasks.listops import SYMBOLS
from minifpt.trunks.convert import convert
from minifpt.trunks.names import TrunkSpec

from . import damage

TINY = dict(n_layer=2, n_head=2, n_embd=8, n_positions=12, vocab_size=20)
TEXT = "Lower, slower: a\n\tcafé, 3 times \u2028 \U0001f600!"


@dataclass(frozen=True)
class Format:
    """A format, or a file that is damaged in its folder.

    make      ``make(folder)`` writes the valid files.
    read      ``read(folder)`` reads them as a user's command does; what it gives.
    damage    {name of a file: [functions of ``damage``]}.
    check     ``check(found, right, how)`` says what is wrong with what was read of a damaged
              file, or None; ``right`` was read of the valid one, ``how`` is the function that
              damaged it, None for the valid one itself.
    seconds   of the processor's, that one case may take.
    runs      whether the file is a program that its reader runs.
    """

    make: Callable
    read: Callable
    damage: dict
    check: Callable
    seconds: float = 5.0
    runs: bool = False


# ------------------------------------------------------------------------------- weights


def language_model():
    return minifpt.LanguageModel(minifpt.GPT2Config(**TINY, dropout=0.1), seed=0)


def make_npz(folder):
    language_model().save(folder / "w.npz", np.float32)


def read_npz(folder):
    minifpt.GPT2.from_pretrained(folder / "w.npz")
    return minifpt.LanguageModel.from_pretrained(folder / "w.npz")


def finite(model, right, how):
    """A model: as large as the right one, with numbers only; after damaged bytes the same, where
    a sum stands in the file."""
    for (name, p), (other, q) in zip(model.named_parameters(), right.named_parameters(),
                                     strict=True):
        if name != other or p.data.shape != q.data.shape or p.data.dtype != np.float32:
            return f"{name} has shape {p.data.shape} and dtype {p.data.dtype}"
        if not np.isfinite(p.data).all():
            return f"{name} holds a NaN or an infinity"
        if how is damage.of_bytes and not np.array_equal(p.data, q.data):
            return f"{name} has other numbers, and nothing was said"
    return None


def some_gpt2(model, right, how):
    """A model that can be used, whatever its config says."""
    C = model.config.n_embd
    if not all(np.isfinite(p.data).all() for p in model.parameters()):
        return "it holds a NaN or an infinity"
    with np.errstate(all="ignore"):
        y, cache = model.forward(np.zeros((1, min(3, model.config.n_positions), C), np.float32))
    return None if y.shape[2] == C else f"its output has shape {y.shape}"


def pieces():
    """{name: array} of a language model, as GPT-2's checkpoints call them."""
    return {n.removeprefix("trunk."): p.data for n, p in language_model().named_parameters()}


def safetensors(arrays):
    header, raw = {"__metadata__": {"format": "pt"}}, b""
    for name, a in arrays.items():
        header[name] = {"dtype": "F32", "shape": a.shape,
                        "data_offsets": [len(raw), len(raw) + a.nbytes]}
        raw += a.tobytes()
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + raw


GPT2 = TINY | {"model_type": "gpt2", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
               "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "n_inner": None,
               "scale_attn_weights": True, "add_cross_attention": False,
               "tie_word_embeddings": True, "pruned_heads": {}}


def make_safetensors(folder):
    (folder / "config.json").write_text(json.dumps(GPT2))
    (folder / "model.safetensors").write_bytes(safetensors(pieces()))


def make_index(folder):
    """Two shards, the last of them with the table of tokens."""
    (folder / "config.json").write_text(json.dumps(GPT2))
    arrays, places = pieces(), {}
    for i, of in enumerate((arrays.keys() - {"wte.weight"}, {"wte.weight"}), 1):
        file = f"model-0000{i}-of-00002.safetensors"
        (folder / file).write_bytes(safetensors({n: arrays[n] for n in arrays if n in of}))
        places |= dict.fromkeys(sorted(of), file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({
        "metadata": {"total_size": 1}, "weight_map": places}))


def read_folder(folder):
    """As ``--model FOLDER``, and converted: both or none, and nothing is left half."""
    out, error = folder / "out.npz", None
    try:
        trunk = TrunkSpec.parse(str(folder)).make()
    except (ValueError, OSError) as e:
        error = e
    try:
        convert(folder, out, "float32", progress=False)
    except (ValueError, OSError):
        assert [*folder.glob("*out*")] == [], "something is left of what was not converted"
        if error is None and trunk.dtype != np.float32:
            raise
    if error is not None:
        raise error
    return trunk


def make_bert(folder):
    """A BERT of one block."""
    C, n = 8, np.random.default_rng(0).standard_normal
    shapes = {"embeddings.position_embeddings.weight": (12, C),
              "embeddings.token_type_embeddings.weight": (2, C)}
    for part, (a, b) in {"attention.self.query": (C, C), "attention.self.key": (C, C),
                         "attention.self.value": (C, C), "attention.output.dense": (C, C),
                         "intermediate.dense": (4 * C, C), "output.dense": (C, 4 * C)}.items():
        shapes |= {f"encoder.layer.0.{part}.weight": (a, b), f"encoder.layer.0.{part}.bias": (a,)}
    for part in ("embeddings", "encoder.layer.0.attention.output", "encoder.layer.0.output"):
        shapes |= {f"{part}.LayerNorm.{kind}": (C,) for kind in ("weight", "bias")}
    (folder / "model.safetensors").write_bytes(safetensors(
        {name: n(shape).astype(np.float32) for name, shape in shapes.items()}))
    (folder / "config.json").write_text(json.dumps({
        "model_type": "bert", "num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": C,
        "max_position_embeddings": 12, "vocab_size": 20, "layer_norm_eps": 1e-12,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
        "intermediate_size": 4 * C, "position_embedding_type": "absolute", "is_decoder": False}))


def read_bert(folder):
    return TrunkSpec.parse(str(folder)).make()


# ---------------------------------------------------------------------------- tokenizers


def make_merges(folder):
    (folder / "merges.txt").write_text(
        "#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in (
            ("l", "o"), ("lo", "w"), ("e", "r"), ("Ġ", "low"), ("a", "a"), ("aa", "aa"),
            ("Ã", "©"))), encoding="utf-8")


def make_vocab(folder):
    make_merges(folder)
    symbols = [*tokenizer.byte_symbols(), "lo", "low", "er", "Ġlow", "aa", "aaaa", "Ã©", "<pad>"]
    (folder / "vocab.json").write_text(json.dumps({s: 2 * i for i, s in enumerate(symbols)}))


def read_tokenizer(folder):
    return tokenizer.find(folder / "w.npz", 10 ** 6)


def there_and_back(bpe, right, how):
    """Any text comes back."""
    for text in (TEXT, "<|endoftext|>", ""):
        ids = bpe.encode(text)
        if bpe.decode(ids) != text or not all(0 <= i < bpe.vocab_size for i in ids):
            return f"{text!r} came back as {bpe.decode(ids)!r}"
    return None


# ------------------------------------------------------------------------------ data sets


def idx(array):
    shape = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + shape + array.tobytes()


def make_idx(folder):
    draw = np.random.default_rng(0)
    images, labels = draw.integers(0, 256, (3, 28, 28), np.uint8), np.arange(3, dtype=np.uint8)
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images), 1, mtime=0))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(labels))


def labelled(found, right, how):
    """Images and labels as they should be."""
    images, labels = found
    good = (images.dtype == labels.dtype == np.uint8 and len(images) == len(labels) > 0
            and images.shape[1:] == right[0].shape[1:] and labels.max() <= 9)
    return None if good else f"images {images.shape}, labels {labels!r:.60}"


def make_cifar(folder):
    rows = np.random.default_rng(0).integers(0, 256, (2, 3073), np.uint8)
    rows[:, 0] %= 10
    (folder / "test_batch.bin").write_bytes(rows.tobytes())


def make_cifar_gz(folder):
    make_cifar(folder)
    path = folder / "test_batch.bin"
    path.write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))


LISTS = """Source\tTarget
( ( ( [MAX 4 ) 3 ) ] )\t4
( ( ( ( [SM 3 ) 8 ) [MED 7 5 1 ] ) ] )\t6
[MIN 9 [MAX 0 2 ] 5 ]\t2
7\t7
"""


def make_lists(folder):
    (folder / "basic_test.tsv").write_text(LISTS)


def read_lists(folder):
    return tasks.get("listops", length=16, files=folder).test_set()


def worked_out(found, right, how):
    """Each expression comes to its answer, worked out by replacing what is innermost."""
    for row, (answer,) in zip(*found, strict=True):
        text = " ".join(SYMBOLS[i] for i in row if i < len(SYMBOLS))
        while inner := re.search(r"\[(MIN|MAX|MED|SM)((?: \d)+) \]", text):
            numbers = [*map(int, inner[2].split())]
            value = {"MIN": min, "MAX": max, "MED": lambda x: int(np.median(x)),
                     "SM": lambda x: sum(x) % 10}[inner[1]](numbers)
            text = text[:inner.start()] + str(value) + text[inner.end():]
        if text != str(answer):
            return f"{text} is no {answer}"
    return None


def make_proteins(folder):
    (folder / "remote_homology_valid.json").write_text(json.dumps([
        {"id": str(i), "primary": "MKVTB"[:i + 2], "protein_length": i + 2, "fold_label": 7 * i,
         "evolutionary": [[0.5] * 20] * 2} for i in range(3)], indent=1))


def read_proteins(folder):
    return data.remote_homology("valid", folder)


def folds(found, right, how):
    proteins, labels = found
    good = len(proteins) == len(labels) > 0 and labels.max() < 1195 and all(
        isinstance(p, str) and p for p in proteins)
    return None if good else f"{found!r:.80}"


# ------------------------------------------------------------------------------------ runs

MODEL = "random:1x2x8"
TASK, FROZEN = tasks.get("bit-xor", n=2), "attn,mlp,ln,pos"       # few arrays in a checkpoint
BEGUN = minifpt.FPT.for_task(TASK, MODEL, FROZEN, seed=1)
SETTINGS = {}                                             # the right settings of its run
RUN = dict(steps=3, batch_size=2, eval_every=1, test_examples=4, checkpoint_every=1,
           progress=False, schedule="constant", seed=1)


def no_picture(histories, path, chance=None):
    path.write_bytes(b"none")


def make_run(folder):
    """A run that has come to its second step of three."""
    training.curves = no_picture                          # it takes longer than all the rest,
    os.fsync = lambda f: None                             # and this comes next
    training.time = SimpleNamespace(perf_counter=lambda: 0.0)     # the same files each time
    train(TASK, MODEL, folder, freeze=FROZEN, **RUN | {"steps": 2})
    SETTINGS.update(json.loads((folder / "config.json").read_text()) | {"steps": 3})


def at_start():
    """A run that is to go on for one step more, as ``minifpt train --resume`` makes it, but for
    its model, which is the same each time."""
    trained = [p for p in BEGUN.parameters() if p.trainable]
    return Run(BEGUN, Adam(trained, 1e-3), np.random.default_rng(0), SETTINGS)


def go_on(folder):
    """The run's last step, or that nothing was changed; {name: array} and the history."""
    run, before = at_start(), {n: p.data.copy() for n, p in BEGUN.named_parameters()}
    try:
        open_folder(folder, True, run)
    except (ValueError, OSError):
        assert all(np.array_equal(p.data, before[n]) for n, p in BEGUN.named_parameters())
        raise
    x, y = TASK.batch(run.rng, 2, "train")
    training.step(BEGUN, TASK, run.optimizer, x, y, 1.0, run.rng)
    run.history.save(folder / "metrics.csv")
    run.save(folder / "checkpoint.npz")
    made = {n: p.data.copy() for n, p in BEGUN.named_parameters()}
    for name, p in BEGUN.named_parameters():
        p.data[...] = before[name]
    return made, run.history


def same_run(found, right, how):
    """What damaged bytes did not keep from going on ends in the same bits."""
    for name, a in found[0].items():
        if not np.isfinite(a).all():
            return f"{name} holds a NaN or an infinity"
        if how in (damage.of_bytes, None) and not np.array_equal(a, right[0][name]):
            return f"{name} ends in other bits"
    same = len(found[1]) == len(right[1]) or how not in (damage.of_bytes, None)
    return None if same else "it has another history"


def compared(folder):
    """The table of a run as ``compare RUN`` prints it, and its lines."""
    found = runs_table.arms(runs_table.read([folder]))
    limits = runs_table.thresholds(found)
    return (runs_table.table(found, limits), runs_table.rows(found, limits),
            History.load(folder / "metrics.csv"))


def numbers(found, right, how):
    """A table of numbers."""
    text, lines, history = found
    cells = text.splitlines()[-1].split("|")[3:-1]
    if not all(re.fullmatch(r" ?-?[\d.]+ ?(\(.*\))?|.*not reached.*", cell) for cell in cells):
        return f"a table with {text.splitlines()[-1]!r}"
    good = all({*row} == {*COLUMNS} and type(row["step"]) is int for row in history)
    return None if good and len(lines) == 1 else f"{lines!r}"


def settings_used(folder):
    """What a run's settings are read for: a table, the model made again, going on."""
    errors, found = [], []
    for use in (compared, made_again, go_on):
        try:
            found.append(use(folder))
        except (ValueError, OSError) as e:
            errors.append(e)
    for e in errors:
        raise e
    return found


def made_again(folder):
    """As ``minifpt report`` and others do, unless another model is meant: it may be a large one."""
    try:
        if json.loads((folder / "config.json").read_text())["model"] != MODEL:
            return
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    run_folders.load_run(folder)


def same_settings(found, right, how):
    """A run goes on by the settings that it had, or not at all."""
    table, _, went_on = found
    return numbers(table, None, None) or same_run(went_on, right[2], None)


# ------------------------------------------------------------------ a reader's own functions


def make_functional(folder):
    """The first half of a solution of lesson 18."""
    text = own.solution().read_text(encoding="utf-8")
    text = text[:text.index("lesson 4\n")]
    (folder / "mine.py").write_text(text, encoding="utf-8")
    mine = own.load(folder / "mine.py")
    for name in own.FUNCTIONS:                            # imports what there is to import
        operations.examine(mine, name, 0)


def read_functional(folder):
    """Load and examine it in a process of its own, as ``minifpt check`` does, but without
    importing everything anew; what it says of each function.  ``test_wild.py`` has the rest."""
    inlet, outlet = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(inlet)
            os.setsid()
            answer(folder, outlet)
        finally:
            os._exit(9)
    os.close(outlet)
    with open(inlet, encoding="utf-8") as f:
        text = f.read()
    _, status = os.waitpid(child, 0)
    if status == signal.SIGPROF or not text:              # a loop; it ended Python
        raise ValueError(f"{folder}: it did not come to its end")
    kind, *rest = json.loads(text)
    if kind == "refused":
        raise ValueError(*rest)
    assert kind == "results", rest
    return rest[0]


def answer(folder, outlet):
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.setitimer(signal.ITIMER_PROF, 3)               # ends it
    os.chdir(folder)
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            mine = own.load(folder / "mine.py")
            found = {}
            text = (folder / "mine.py").read_bytes()
            for name in list(own.FUNCTIONS)[zlib.crc32(text) % 17::17]:
                result = operations.examine(mine, name, 0)
                found[name] = result.status, result.hint
        row = "results", found
    except (ValueError, OSError) as e:
        row = "refused", str(e)
    except BaseException as e:
        row = "raised", f"{type(e).__name__}: {e!s:.200}"
    with open(outlet, "w", encoding="utf-8") as f:
        f.write(json.dumps(row))
    os._exit(0)


def judged(found, right, how):
    """Each function is right, wrong with a hint of one line, or not written."""
    for name, (status, hint) in found.items():
        if status not in ("passed", operations.NOT_WRITTEN, operations.WRONG) or "\n" in hint:
            return f"{name}: {status}, {hint!r}"
        if status == operations.WRONG and not 10 < len(hint) < 2000:
            return f"{name}: wrong, {hint!r}"
    return None


TEXT_OF = [damage.of_text, damage.of_bytes]
JSON_OF = [damage.of_json, damage.of_json, damage.of_text, damage.of_bytes]
NPZ_OF = [damage.of_npz, damage.of_npz, damage.of_bytes]
FORMATS = {
    "npz": Format(make_npz, read_npz, {"w.npz": NPZ_OF}, finite),
    "safetensors": Format(make_safetensors, read_folder, {
        "model.safetensors": [damage.of_safetensors, damage.of_safetensors, damage.of_bytes]},
        some_gpt2),
    "index": Format(make_index, read_folder, {"model.safetensors.index.json": JSON_OF},
                    some_gpt2),
    "config": Format(make_safetensors, read_folder, {"config.json": JSON_OF}, some_gpt2),
    "bert": Format(make_bert, read_bert, {
        "config.json": JSON_OF, "model.safetensors": [damage.of_safetensors]}, some_gpt2),
    "merges": Format(make_merges, read_tokenizer, {"merges.txt": TEXT_OF}, there_and_back),
    "vocab": Format(make_vocab, read_tokenizer, {
        "vocab.json": JSON_OF, "merges.txt": [damage.of_text]}, there_and_back),
    "idx": Format(make_idx, lambda folder: data.mnist("test", folder), {
        "t10k-images-idx3-ubyte.gz": [damage.of_bytes, damage.gzipped(damage.of_bytes)],
        "t10k-labels-idx1-ubyte": [damage.of_bytes]}, labelled),
    "cifar": Format(make_cifar, lambda folder: data.cifar10("test", folder), {
        "test_batch.bin": [damage.of_bytes]}, labelled),
    "cifar-gz": Format(make_cifar_gz, lambda folder: data.cifar10("test", folder), {
        "test_batch.bin": [damage.of_bytes, damage.gzipped(damage.of_bytes)]}, labelled),
    "tsv": Format(make_lists, read_lists, {"basic_test.tsv": TEXT_OF}, worked_out),
    "proteins": Format(make_proteins, read_proteins, {"remote_homology_valid.json": JSON_OF},
                       folds),
    "checkpoint": Format(make_run, go_on, {"checkpoint.npz": NPZ_OF}, same_run),
    "settings": Format(make_run, settings_used, {"config.json": JSON_OF}, same_settings),
    "metrics": Format(make_run, compared, {"metrics.csv": TEXT_OF}, numbers),
    "functional": Format(make_functional, read_functional, {"mine.py": TEXT_OF}, judged,
                         runs=True),
}
