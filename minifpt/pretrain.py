"""How the weights in ``weights/`` were made: ``minifpt pretrain SOURCE``."""

from pathlib import Path

from .gpt2 import GPT2, SHAPES, GPT2Config, LanguageModel
from .tasks import Text
from .train import train

SHAPE = SHAPES["minigpt"]                                 # one for every source


def language(text, out, *, steps=4500, batch_size=16, lr=3e-3, seed=0, resume=False,
             progress=True):
    """Train a byte-level language model on text files and save it as ``OUT.npz``.

    text   files, or folders of ``*.txt``; 5 % of each is held out.
    out    path of the weight file; the run's folder stands beside it, without ``.npz``.

    AdamW with cosine decay to a tenth, 200 steps of warm-up, weight decay 0.1, no dropout
    (the text is seen about once).  Returns the run's history.
    """
    out = Path(out).with_suffix(".npz")
    task = Text(text, tokens=SHAPE["n_positions"])
    # Dropout 0 here; the file says 0.1, what the paper fine-tunes with.
    trunk = GPT2(GPT2Config(**SHAPE, dropout=0.0), seed=seed)
    history = train(LanguageModel(trunk), task, steps, batch_size, lr, seed, out.with_suffix(""),
                    resume=resume, schedule="cosine", warmup=200, weight_decay=0.1,
                    eval_every=250, test_examples=128, checkpoint_every=250, progress=progress)
    trunk.config.dropout = 0.1
    last = history[-1]
    trunk.save(out, source="language", text=sorted(Path(f).name for f in task.files),
               command=f"minifpt pretrain language --steps {steps} --batch-size {batch_size} "
                       f"--lr {lr} --seed {seed}",
               test_loss=round(last["test_loss"], 4), seconds=round(last["seconds"]))
    history.save(out.with_suffix(".csv"))
    return history
