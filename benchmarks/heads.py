"""Measure the scale and the rank of a trunk's attention matrices.

    python -m benchmarks.heads [MODEL ...]

For each trunk it prints the standard deviations of ``c_attn`` and ``c_proj``, and the number of
directions in which a head passes on its values, with the range over all heads.  That number is the
participation ratio of the squared singular values of the head's value weights times its output
weights, (C, C): ``(sum s^2)^2 / sum s^4``.  It is the rank where all singular values are equal, and
1 where one of them outweighs the others.
"""

import argparse

import numpy as np

from minifpt.trunks.names import TrunkSpec

MODELS = ["minigpt-language", "minigpt-bits", "minigpt-images", "statistics:minigpt-language",
          "random"]


def directions(attn, head):
    """Return the participation ratio of one head."""
    C = len(attn.c_proj.weight.data)
    D = C // attn.n_head
    values = attn.c_attn.weight.data[:, 2 * C + head * D:2 * C + (head + 1) * D]   # (C, D)
    out = attn.c_proj.weight.data[head * D:(head + 1) * D]                         # (D, C)
    s2 = np.linalg.svd(values @ out, compute_uv=False) ** 2
    return s2.sum() ** 2 / (s2 ** 2).sum()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    models = parser.parse_args().models
    print("| trunk | spread of c_attn | of c_proj | directions a head passes on |\n"
          "|---|---|---|---|")
    for model in models:
        spec = TrunkSpec.parse(model)
        blocks = [block.attn for block in spec.make().h]
        spread = [np.mean([getattr(b, name).weight.data.std() for b in blocks])
                  for name in ("c_attn", "c_proj")]
        ratios = [directions(b, head) for b in blocks for head in range(b.n_head)]
        print(f"| {spec.label} | {spread[0]:.3f} | {spread[1]:.3f} | {np.mean(ratios):.1f} "
              f"({min(ratios):.1f} to {max(ratios):.1f}) |")


if __name__ == "__main__":
    main()
