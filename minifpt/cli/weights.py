"""Commands on weights and language models, and ``info``."""

import os
import platform
from pathlib import Path

import numpy as np

from .. import __version__, machine
from ..experiments import pretrain as pretraining
from ..files import cache_folder, read_text, tokenizer, weights
from ..files.huggingface import HUB
from ..gpt2 import LanguageModel
from ..trunks import convert as converting
from .formatting import print_rows, say
from .options import MODEL_NAME, SEED, given, option, path, run_options, takes, whole

LANGUAGE_MODEL = option("--model", default=MODEL_NAME, metavar="NAME|PATH",
                        help=f"a language model (default: {MODEL_NAME})")


@takes()
def info(args):
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    print_rows({
        "minifpt": f"{__version__} in {Path(__file__).resolve().parents[1]}",
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "NumPy": np.__version__,
        "BLAS": f"{blas.get('name')} {blas.get('version')}, {machine.blas_kernels()}",
        "cores": "{}, limited by {}; OMP_NUM_THREADS lowers it".format(*machine.cores_and_why()),
        "OPENBLAS_CORETYPE": os.environ.get("OPENBLAS_CORETYPE", "not set"),
        "weights": "none found" * (not weights.available()),
        **{f"  {name}": weights.origin(name) for name in weights.available()},
        "looked for in": ", ".join(map(str, weights.folders())),
        "data": os.environ.get("MINIFPT_DATA", "MINIFPT_DATA is not set") + ", then "
                + str(cache_folder() / "data")})


@takes(
    option("source", choices=list(pretraining.SOURCES), metavar="SOURCE",
           help=", ".join(f"{k} ({v})" for k, v in pretraining.SOURCES.items())),
    option("--text", nargs="+", metavar="FILE|FOLDER",
           help="text files, or folders of *.txt, for language, masked and trigrams"),
    option("--data", metavar="FOLDER",
           help="folder of MNIST's files, for images and vision (default: MINIFPT_DATA)"),
    option("--shape", metavar="BxHxC",
           help="blocks x heads x channels, as in 1x2x256 (default: 6x4x128)"),
    option("--out", type=path, help="weight file to write (default: minigpt-SOURCE.npz)"),
    *run_options("steps", "batch_size", "lr", default="the source's"),
    SEED,
    option("--resume", action="store_true", help="go on from the last checkpoint"))
def pretrain(args):
    out = pretraining.weight_file(args.out or f"minigpt-{args.source}")
    last = pretraining.pretrain(args.source, out, shape=args.shape, text=args.text, data=args.data,
                             seed=args.seed, resume=args.resume,
                             **given(args, "steps", "batch_size", "lr"))[-1]
    say(f"{out}: {last['test_loss']:.3f} nats, {100 * last['test_accuracy']:.1f} % right on "
          f"what was held out, {pretraining.SOURCES[args.source]}")


@takes(
    option("source", metavar="NAME|PATH",
           help=f"{', '.join(HUB)}, another hub id OWNER/NAME, or a folder or file"),
    option("--dtype", choices=["float16", "float32"], default="float16",
           help="precision of the file (default: float16)"),
    option("--out", type=path, help="weight file to write (default: in the user's cache folder)"),
    option("--dropout", type=float, help="dropout of the model (default: the source's)"),
    option("--revision", metavar="COMMIT",
           help="a commit, tag or branch of the hub id (default: the newest)"))
def convert(args):
    say(converting.convert(args.source, args.out, args.dtype, dropout=args.dropout,
                             revision=args.revision))


def load_with_tokenizer(model):
    """A language model and the tokenizer that belongs to it."""
    lm = LanguageModel.from_pretrained(model)
    return lm, tokenizer.find(weights.find(model), lm.config.vocab_size)


@takes(
    option("prompt", nargs="?", default="It was ", help="text to continue (default: 'It was ')"),
    LANGUAGE_MODEL,
    option("--tokens", type=whole, default=200, help="tokens to write (default: 200)"),
    option("--temperature", type=float, default=0.8,
           help="0 takes the likeliest token (default: 0.8)"),
    option("--top-k", type=whole, help="draw among the k likeliest only (default: all)"),
    SEED)
def generate(args):
    if not args.prompt:
        raise ValueError("generate: the prompt is empty, expected some text to go on from")
    lm, words = load_with_tokenizer(args.model)
    ids = lm.generate(words.encode(args.prompt), args.tokens, args.temperature, args.top_k,
                      args.seed)
    print(words.decode(ids))


@takes(
    option("file", type=path, metavar="FILE", help="a text file, UTF-8"),
    LANGUAGE_MODEL,
    option("--stride", type=whole, help="tokens between windows (default: half a window)"))
def perplexity(args):
    lm, words = load_with_tokenizer(args.model)
    if not args.file.is_file():
        raise FileNotFoundError(f"{args.file}: there is no such file")
    ids, unit = words.encode(read_text(args.file)), "token"
    if isinstance(words, tokenizer.Bytes):
        unit = "byte"
    if len(ids) < 2:
        raise ValueError(f"{args.file}: has {len(ids)} {unit}s, expected at least 2")
    score = lm.perplexity(ids, args.stride, progress=True)
    say(f"{args.file}: perplexity {score['perplexity']:.3f} a {unit}, "
          f"{score['bits_per_token']:.3f} bits, {score['nats_per_token']:.3f} nats a {unit}, "
          f"{score['tokens']:,} {unit}s scored")
