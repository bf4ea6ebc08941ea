"""Train the authors' own program on bit XOR, with the random trunk as they drew it.

    git clone https://github.com/kzl/universal-computation
    pip install torch==2.13.0 transformers
    python -m studies.authors universal-computation [--seed N] [--bits 1|5] [--tests N]

The paper gives 20,000 steps for random weights on this task, ours take 300.  This tells whether the
difference lies in our program: it builds their model and runs their training loop, with their
settings.  Transformers 4.1.1, which they used, drew every matrix with a standard deviation of 0.02;
later versions divide some, so all are drawn again.  After every 100 steps it prints the test
accuracy, over 25 batches of 4.  ``--bits 5`` puts a whole string into one token.
"""

import argparse
import sys
import types

import numpy as np
import torch


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="of their repository")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bits", type=int, default=1, choices=[1, 5], help="in a token")
    parser.add_argument("--tests", type=int, default=5, help="every 100 steps, default 5")
    args = parser.parse_args()

    from transformers import GPT2Config, GPT2Model
    sys.path.insert(0, args.folder)
    sys.modules["wandb"] = types.ModuleType("wandb")      # they log with it
    # They load GPT-2 for its configuration alone, if the trunk is random.
    GPT2Model.from_pretrained = lambda name: types.SimpleNamespace(config=GPT2Config())
    from universal_computation.datasets.bit_xor import BitXORDataset
    from universal_computation.fpt import FPT
    from universal_computation.trainer import Trainer

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)                             # noqa: NPY002, they draw from it
    model = FPT(args.bits, 2 * args.bits, pretrained=False, dropout=0.1, orth_gain=1.41)
    for name, p in model.sequence_model.named_parameters():
        if name.endswith("weight") and (".attn." in name or ".mlp." in name):
            torch.nn.init.normal_(p, 0, 0.02)

    def loss(out, y, x=None):
        return torch.nn.functional.cross_entropy(out.reshape(-1, 2), y.reshape(-1))

    def accuracy(out, y, x=None):
        return (out.reshape(-1, 5, 2).argmax(-1) == y).mean()

    trainer = Trainer(model, BitXORDataset(n=5, num_patterns=2, device="cpu"), loss, accuracy,
                      steps_per_epoch=100, test_steps_per_epoch=25, learning_rate=1e-3,
                      batch_size=4, eval_batch_size=4)
    for _ in range(args.tests):
        trainer.train_epoch()
        print(f"{trainer.diagnostics['Gradient Steps']} steps: "
              f"{100 * trainer.diagnostics['Test Accuracy']:.1f} %", flush=True)


if __name__ == "__main__":
    main()
