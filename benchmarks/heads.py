"""How much a trunk's frozen attention can pass on: scale and rank of its matrices.

    python -m benchmarks.heads [MODEL ...]

For each trunk: the spread of ``c_attn`` and ``c_proj``, and the number of directions in which a
head passes on what it looks at.  That number is the participation ratio of the squared singular
values of the product of the head's value and output weights, (C, C):
``(sum s^2)^2 / sum s^4``.  It is the rank where all of them are alike, and 1 where one outweighs
the others.  Mean and range over all heads.
"""

import sys

import numpy as np

from minifpt.trunks.names import TrunkSpec

MODELS = ["minigpt-language", "minigpt-bits", "minigpt-images", "statistics:minigpt-language",
          "random"]


def directions(attn, head):
    """The participation ratio of one head."""
    C = len(attn.c_proj.weight.data)
    D = C // attn.n_head
    values = attn.c_attn.weight.data[:, 2 * C + head * D:2 * C + (head + 1) * D]   # (C, D)
    out = attn.c_proj.weight.data[head * D:(head + 1) * D]                         # (D, C)
    s2 = np.linalg.svd(values @ out, compute_uv=False) ** 2
    return s2.sum() ** 2 / (s2 ** 2).sum()


def main():
    print("| trunk | spread of c_attn | of c_proj | directions a head passes on |\n"
          "|---|---|---|---|")
    for model in sys.argv[1:] or MODELS:
        spec = TrunkSpec.parse(model)
        blocks = [block.attn for block in spec.make().h]
        spread = [np.mean([getattr(b, name).weight.data.std() for b in blocks])
                  for name in ("c_attn", "c_proj")]
        found = [directions(b, head) for b in blocks for head in range(b.n_head)]
        print(f"| {spec.label} | {spread[0]:.3f} | {spread[1]:.3f} | {np.mean(found):.1f} "
              f"({min(found):.1f} to {max(found):.1f}) |")


if __name__ == "__main__":
    main()
