"""The form of an attention head, also called its QK circuit: what it looks for, as a matrix.

A head scores a query token x against a key token z by ``x M z'`` with ``M = W_q W_k'``, biases left
out.  M is the sum of a symmetric part S and an antisymmetric part A, and ``x A x' = 0``: only S
finds a token by its likeness.  A head looks for tokens that resemble the query in the directions in
which S is positive, and looks away from them where S is negative.

M has rank D, so S has at most D positive and D negative eigenvalues.  They are computed in the
space that W_q and W_k span, of at most 2D dimensions.
"""

from typing import NamedTuple

import numpy as np

from ..checks import one_of
from ..layers import Block, LayerNorm
from ..machine import single_threaded_blas

PARTS = "symmetric", "antisymmetric", "positive", "negative"
STARTS = "aligned", "opposed"


# ---------------------------------------------------------------------------- the heads of a trunk


def blocks_of(trunk, purpose):
    """Return the trunk's blocks.  Raises ``ValueError`` if it has no heads."""
    blocks = getattr(trunk, "h", ())
    if not blocks or not all(isinstance(block, Block) for block in blocks):
        raise ValueError(f"{purpose}: the trunk, of class {type(trunk).__name__}, has no attention "
                         "heads, expected one with attention, such as a GPT-2")
    return blocks


def queries_and_keys(block):
    """Return the weights of the queries and keys of each head, (H, C, D) each.

    They are views of the block's weights, but copies where it has a low-rank adapter or fewer heads
    of keys than of queries.
    """
    attn = block.attn
    joined = hasattr(attn, "c_attn")
    matrices = [layer.merged() if hasattr(layer, "merged") else layer.weight.data
                for layer in ([attn.c_attn] if joined else [attn.q_proj, attn.k_proj])]
    q, k = np.split(*matrices, 3, axis=1)[:2] if joined else matrices
    H = attn.n_head
    q, k = (w.reshape(len(w), -1, q.shape[1] // H).transpose(1, 0, 2) for w in (q, k))
    return q, k if len(k) == H else k.repeat(H // len(k), axis=0)


def norm_before(trunk, i):
    """Return the layer whose output the attention of block i reads."""
    if hasattr(trunk, "ln"):                              # layer norms follow the parts
        return trunk.h[i - 1].ln_2 if i else trunk.ln
    return trunk.h[i].ln_1


def through_norm(trunk, i, x):
    """Return x (n, C) as block i's norm passes it on, up to a factor for each token: centred, but
    not by an RMS norm, and times the scale."""
    norm, x = norm_before(trunk, i), np.asarray(x, np.float64)
    if isinstance(norm, LayerNorm):
        x = x - x.mean(axis=1, keepdims=True)
    return x * norm.weight.data


def summed_form(trunk, x):
    """Return the sum over the first block's heads of the form of rows x (n, C), which pass the norm
    before it: (n, n), in float64."""
    x = through_norm(trunk, 0, x)
    return sum((x @ q) @ (x @ k).T for q, k in zip(*queries_and_keys(trunk.h[0]), strict=True))


# -------------------------------------------------------------------- the switch in a trunk's name


@single_threaded_blas                                     # several threads give other bits
def switch(trunk, qk, is_random, model):
    """Set the queries and keys of all heads of a trunk in place.

    A random trunk keeps W_q, and the distribution of each number of W_k.  For an angle a,
    ``W_k = cos(a) W_q + sin(a) Z``, with Z as W_k is without the switch.  For ``antisymmetric``,
    ``W_q = [U, V]`` and ``W_k = [V, -U]``.  Of the form of another trunk's heads :func:`part_of`
    stays.  The biases of queries and keys remain.  Raises ``ValueError``, which names the
    ``model``, for a trunk that the switch does not fit.
    """
    c, where = trunk.config, f"--model {model}"
    if getattr(c, "n_group", c.n_head) != c.n_head:
        raise ValueError(f"{where}: qk= needs as many heads of keys as of queries, the trunk has "
                         f"{c.n_group} and {c.n_head}")
    if hasattr(c, "rope_base") and isinstance(qk, str):
        raise ValueError(f"{where}: rotary positions turn a head's form with the distance, so it "
                         "takes no part of it, only a random trunk an angle")
    for i, block in enumerate(trunk.h):
        q, k = queries_and_keys(block)
        if qk == "antisymmetric" and q.shape[2] % 2:
            raise ValueError(f"{where}: antisymmetric forms need heads of an even width, these "
                             f"have {q.shape[2]} channels")
        if not is_random:
            for h in range(len(q)):
                q[h], k[h] = part_of(q[h], k[h], qk, f"{where}: head {h} of block {i}")
        elif qk == "antisymmetric":
            u, v = np.split(q, 2, axis=2)
            k[...] = np.concatenate([v, -u], axis=2)
        else:
            from scipy.special import cosdg, sindg  # exactly Z at 90 degrees; slow to import
            k[...] = float(cosdg(qk)) * q + float(sindg(qk)) * k


def part_of(q, k, part, where="part_of"):
    """Return W_q and W_k (C, D) whose form is a part of that of ``q`` and ``k``, with its norm.

    part   ``symmetric`` or ``antisymmetric``, of which the best approximation of rank D remains, or
           the ``positive`` or the ``negative`` eigenvalues of the symmetric part.

    Of all such pairs, which differ by a rotation, this is the one nearest to ``q`` and ``k``: their
    biases then keep their meaning as far as can be.  Raises ``ValueError`` if the part is 0.
    """
    D = q.shape[1]
    basis, m = small_form(q, k)
    if part == "antisymmetric":
        values, vectors = np.linalg.eigh(0.5j * (m - m.T))      # in pairs, the positive ones last
        vectors = vectors[:, -(D // 2):] * np.sqrt(2 * np.maximum(values[-(D // 2):], 0))
        u, v = vectors.imag, vectors.real
        new_q, new_k = np.hstack([u, v]), np.hstack([v, -u])
    else:
        values, vectors = np.linalg.eigh((m + m.T) / 2)
        sizes = {"symmetric": np.abs(values), "positive": values, "negative": -values}[part]
        largest = np.argsort(sizes)[-D:]
        new_q = vectors[:, largest] * np.sqrt(np.maximum(sizes[largest], 0))
        new_k = new_q * np.sign(values[largest])
    size, wanted = np.linalg.norm(new_q @ new_k.T), np.linalg.norm(m)
    if size <= 1e-6 * wanted:
        raise ValueError(f"{where}: its form has no {part} part")
    new = np.vstack([basis @ new_q, basis @ new_k]) * np.sqrt(wanted / size)
    u, _, vt = np.linalg.svd(new.T @ np.vstack([q, k]))
    return np.split(new @ u @ vt, 2)


def small_form(q, k):
    """Return an orthonormal basis (C, r) and the form (r, r) in it: ``q k' = basis m basis'``, with
    r at most 2D, in float64."""
    basis, factors = np.linalg.qr(np.hstack([q, k]).astype(np.float64))
    r_q, r_k = np.split(factors, 2, axis=1)
    return basis, r_q @ r_k.T


# --------------------------------------------------------------------------- where training starts


@single_threaded_blas
def start_input(model, start):
    """Turn the weight of an FPT's input layer, in place, into the directions in which the first
    block's heads look for likeness.

    start   ``aligned``: the most positive eigendirections of the sum of the heads' symmetric forms,
            with the norm's scale and centring inside; ``opposed``: the most negative ones.

    For n input numbers, or symbols, it takes n directions, but at most C / 2.  Of all rotations of
    them it takes the one nearest to the random weight.  The weight keeps its norm.  Raises
    ``ValueError`` for a trunk without heads.
    """
    one_of("for_task", "start", start, STARTS)
    trunk, weight = model.trunk, model.input.weight.data
    blocks_of(trunk, f"start {start}")                    # raises without heads
    C = weight.shape[1]
    n = min(len(weight), C // 2)
    if n == 0:
        raise ValueError(f"start {start}: a trunk with one channel has no directions")
    # No layer norm passes on what all channels share, so no direction may have it.
    is_centred = isinstance(norm_before(trunk, 0), LayerNorm)
    from scipy.linalg import helmert  # slow to import
    basis = helmert(C) if is_centred else np.eye(C)
    m = summed_form(trunk, basis)
    _, vectors = np.linalg.eigh((m + m.T) / 2)
    chosen = vectors[:, -n:] if start == "aligned" else vectors[:, :n]
    directions = chosen.T @ basis                         # (n, C)
    u, _, vt = np.linalg.svd(weight @ directions.T, full_matrices=False)
    weight[...] = np.linalg.norm(weight) / np.sqrt(n) * (u @ vt @ directions)


# ---------------------------------------------------------------------------------------- measures


class Heads(NamedTuple):
    """The forms of a model's heads, arrays (blocks, heads) in float64.

    share      share of the symmetric part in the squared norm of the form.
    trace      trace over the norm: ``positive + negative``.
    positive   sum of the positive eigenvalues of the symmetric part over the form's norm.
    negative   sum of the negative ones over the form's norm.
    random     {each of these names: (mean, standard deviation) of random heads of this shape}.
    """

    share: np.ndarray
    trace: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    random: dict


def heads(model):
    """Return the :class:`Heads` of a trunk, or of another model with a ``trunk``.

    For an FPT a form is that of two inputs, numbers or one-hot symbols: the input layer, the norm
    before the block's attention with its scale, and W_q and W_k.  For a block above the first it is
    the form of the inputs in the residual stream.  Raises ``ValueError`` for a trunk without heads.
    """
    trunk = getattr(model, "trunk", model)
    numbers = []
    for i, block in enumerate(blocks_of(trunk, "heads")):
        pairs = np.stack(queries_and_keys(block), axis=1).astype(np.float64)     # (H, 2, C, D)
        if hasattr(model, "input"):
            pairs = through_norm(trunk, i, model.input.weight.data) @ pairs
        numbers.append([measures(q, k) for q, k in pairs])
        n, D = pairs.shape[2:]
    rng = np.random.default_rng(0)
    random = np.array([measures(*rng.standard_normal((2, n, D))) for _ in range(RANDOM_HEADS)])
    spread = zip(random.mean(axis=0), random.std(axis=0, ddof=1), strict=True)
    return Heads(*np.moveaxis(np.array(numbers), 2, 0),
                 dict(zip(Heads._fields, spread, strict=False)))


RANDOM_HEADS = 50                                         # that are drawn for mean and deviation


def measures(q, k):
    """Return share, trace, positive and negative of the form of q and k (n, D), see
    :class:`Heads`; all are 0 for a form that is 0."""
    _, m = small_form(q, k)
    s, size = (m + m.T) / 2, np.linalg.norm(m) or 1.0
    values = np.linalg.eigvalsh(s) / size
    positive, negative = values[values > 0].sum(), values[values < 0].sum()
    return (values ** 2).sum(), positive + negative, positive, negative
