"""The commands for weights and language models, and ``info``."""

import os
import platform
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from .. import __version__, machine, trunks
from ..exercises import own
from ..experiments import convert as converting
from ..experiments import pretrain as pretraining
from ..experiments import runs as run_folders
from ..files import cache_folder, huggingface, read_text, tokenizer, weights
from ..files.huggingface import HUB
from . import options as shared
from .formatting import print_rows
from .options import option, takes

LANGUAGE_MODEL = option("--model", default=shared.DEFAULT_MODEL, metavar="NAME|PATH",
                        help=f"a language model (default: {shared.DEFAULT_MODEL})")


@takes()
def info(args):
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    print_rows({
        "minifpt": f"{__version__} in {Path(__file__).resolve().parents[1]}",
        "Python": f"{platform.python_version()}, {platform.platform()}",
        "NumPy": np.__version__,
        "BLAS": f"{blas.get('name')} {blas.get('version')}, {machine.blas_kernels()}",
        "cores": "{}, limited by {}".format(*machine.cores_and_why()) + (
            "; to use fewer, set OMP_NUM_THREADS" * (machine.cores() > 1)),
        "weights": "made by" if weights.available() else "none found",
        **{f"  {name}": weights.origin(name) for name in weights.available()},
        "weight folders": ", ".join(map(str, weights.folders())),
        "data": os.environ.get("MINIFPT_DATA", "MINIFPT_DATA is not set") + ", then "
                + str(cache_folder() / "data")})


@takes(
    option("source", choices=pretraining.SOURCES, metavar="SOURCE",
           help=", ".join(f"{name} ({words})" for name, words in weights.PRETRAINED_ON.items())),
    option("--text", nargs="+", metavar="FILE|FOLDER",
           help="for language, masked: text files or folders of *.txt"),
    option("--data", metavar="FOLDER",
           help="for images, vision: folder of MNIST's files (default: MINIFPT_DATA)"),
    option("--shape", metavar="BxHxC",
           help="blocks x heads x channels, or with a family's name (default: 6x4x128)"),
    option("--tokens", type=int, help="tokens in a passage, at most 256 (default: 256)"),
    shared.out_option("weight file to write, beside a folder with its run", "minigpt-SOURCE.npz"),
    *shared.run_options("steps", "batch_size", "lr", "weight_decay", default="the source's"),
    shared.SEED,
    option("--resume", action="store_true", help="continue from the last checkpoint"),
    shared.FORCE)
def pretrain(args):
    out = pretraining.weight_file(args.out or f"minigpt-{args.source}")
    last = pretraining.pretrain(args.source, out, shape=args.shape, tokens=args.tokens,
                                text=args.text, data=args.data, seed=args.seed,
                                resume=args.resume, force=args.force,
                                **shared.given_options(args, "steps", "batch_size", "lr",
                                                       "weight_decay"))[-1]
    print(f"{out}: {last['test_loss']:.3f} nats, {100 * last['test_accuracy']:.1f} % accuracy on "
          f"held-out data, {weights.PRETRAINED_ON[args.source]}")


@takes(
    option("source", metavar="NAME|PATH|RUN",
           help=f"{', '.join(HUB)}, another hub id OWNER/NAME, a folder or file, or the folder of "
                "a run"),
    option("--dtype", choices=["float16", "float32"],
           help="precision (default: float16 for an .npz file, float32 for a folder)"),
    shared.out_option("weight file, or for a run or our weights a folder for Transformers",
                      "in the user's cache folder"),
    option("--dropout", type=float, help="dropout of the model (default: the source's)"),
    option("--revision", metavar="COMMIT",
           help="a commit, tag or branch of the hub id (default: the newest)"),
    shared.FORCE)
def convert(args):
    source, out, dtype = args.source, args.out, args.dtype
    is_saved = huggingface.is_checkpoint(source)          # by Transformers
    is_run = not is_saved and any((Path(source) / name).is_file()
                                  for name in ("checkpoint.npz", "metrics.csv"))
    is_ours = not is_saved and (out is None or out.suffix != ".npz") and (
        source.endswith(".npz") or source in {*weights.available()} - {*HUB}
        or out is not None and source in weights.available())
    if not (is_run or is_ours):
        out = converting.import_weights(source, out, dtype, args.dropout, args.revision,
                                        args.force)
    elif args.dropout is not None or args.revision is not None:
        raise ValueError("convert: --dropout and --revision are for weights that Transformers "
                         f"saved, not for {source}")
    elif out is None:
        raise ValueError(f"convert: {source} needs --out, the folder to write"
                         + ", or an .npz file" * is_run)
    elif is_run:
        converting.export_run(run_folders.load(source), source, out, dtype, args.force)
    else:
        converting.export_weights(source, out, dtype)
    names = sorted(path.name for path in out.iterdir()) if out.is_dir() else []
    print(f"{out}: {' '.join(names)}" if names else out)


def load_with_tokenizer(model):
    """Return a language model and its tokenizer."""
    lm = trunks.language_model(model)
    return lm, tokenizer.find(weights.find(model), lm.config.vocab_size)


@takes(
    option("prompt", nargs="?", default="It was ", help="text to continue (default: 'It was ')"),
    LANGUAGE_MODEL,
    option("--tokens", type=int, default=200, help="tokens to write (default: 200)"),
    option("--temperature", type=float, default=0.8,
           help="0 takes the most likely token (default: 0.8)"),
    option("--top-k", type=int, help="draw only from the k most likely (default: all)"),
    option("--top-p", type=float,
           help="draw from the fewest tokens of this probability (default: all)"),
    option("--stop", metavar="TEXT", help="end behind this text (default: after --tokens)"),
    shared.FUNCTIONAL, shared.SEED)
def generate(args):
    if not args.prompt:
        raise ValueError("generate: the prompt is empty, expected a text to continue")
    if args.stop == "":
        raise ValueError("generate: --stop is empty, expected a text such as '.'")
    lm, words = load_with_tokenizer(args.model)
    ids = words.encode(args.prompt)
    # A token may hold the text's end and more, so the text is searched, not the tokens.
    stop = None if args.stop is None else lambda tokens: args.stop in words.decode(tokens)
    functions = own.using(args.functional, skip_check=True) if args.functional else nullcontext()
    with functions as file:
        for r in file.wrong if file else ():
            print(f"{file.path}: {r.name} is wrong. {r.hint}", file=sys.stderr)
        text = words.decode(lm.generate(ids, args.tokens, args.temperature, args.top_k, args.seed,
                                        args.top_p, stop))
    if args.stop is not None:
        before, end, _ = text[len(words.decode(ids)):].partition(args.stop)
        text = words.decode(ids) + before + end
    print(text)


@takes(
    option("file", type=Path, metavar="FILE", help="a text file, UTF-8"),
    LANGUAGE_MODEL,
    option("--stride", type=int, help="tokens between windows (default: half a window)"))
def perplexity(args):
    lm, words = load_with_tokenizer(args.model)
    if not args.file.exists():
        raise FileNotFoundError(f"{args.file}: there is no such file")
    ids = words.encode(read_text(args.file))
    unit = "byte" if isinstance(words, tokenizer.Bytes) else "token"
    if len(ids) < 2:
        raise ValueError(f"{args.file}: has {len(ids)} {unit}s, expected at least 2")
    score = lm.perplexity(ids, args.stride, progress=True)
    print(f"{args.file}: perplexity {score['perplexity']:.3f} a {unit}, "
          f"{score['bits_per_token']:.3f} bits, {score['nats_per_token']:.3f} nats a {unit}, "
          f"{score['tokens']:,} {unit}s scored")
