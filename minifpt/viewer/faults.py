"""Faults that the pages make on purpose, each in one line of code.

``minifpt steps`` runs the faults that have a ``why``, by their change of the backward pass in
``functional``; the live page runs those that have JavaScript; the check of a reader's own file
knows all changes as mistakes.
"""

from collections import namedtuple

# title, op: what a page calls it, and the operation that it is in.  text: what is wrong.  why: why
# it is easily missed.  change: of the backward pass (see ``rewriting``).  javascript: (right,
# wrong) texts of engine.js; the right one occurs once there.  hides: the forward pass is changed
# with its gradient, so that a gradient check has nothing to notice.
Fault = namedtuple("Fault", "id title op text why change javascript hides",
                   defaults=("", "", (), False))
QUIET = "for (let i = 0; i < ds.length; i++) ds[i] *= 1 / Math.sqrt(D);", ""
MASK = "if (causal && key > query) scores[i] = -Infinity;"
FAULTS = [
    Fault("mean", "A mean for a sum", "layer_norm",
          "The scale of a layer norm serves all tokens: its gradient is a sum. Here it is a mean.",
          "dw has the right direction, Adam's step hardly depends on its size, and the dx that is "
          "passed on is right.",
          "(dy * xhat).reshape(-1, len(w)).sum(axis=0) -> "
          "(dy * xhat).reshape(-1, len(w)).mean(axis=0)",
          [("if (need[1]) dw[c] += dy[i] * xhat[i];",
            "if (need[1]) dw[c] += dy[i] * xhat[i] / N;")]),
    Fault("constants", "Mean and variance as constants", "layer_norm",
          "The mean and the variance depend on x, too. This backward pass forgets that.", "",
          "(g - _ - _1) * rstd -> g * rstd",
          [("dx[i] = (dy[i] * w[c] - shift - xhat[i] * stretch) * rstd[n];",
            "dx[i] = dy[i] * w[c] * rstd[n];")]),
    Fault("transpose", "A missing transpose", "linear",
          "The gradient goes back through a square matrix, where it needs the transpose. The "
          "shapes fit, so nothing complains.",
          "A square weight lets it pass: all shapes fit. Any other one would raise an error.",
          "dx = dy @ w.T -> dx = dy @ (w if len(w) == w.shape[1] else w.T)",
          [("matmul(matrix(dx, I), matrix(dy, O), transposed(matrix(w, O)), N, O, I);",
            "matmul(matrix(dx, I), matrix(dy, O), I === O ? matrix(w, O) : "
            "transposed(matrix(w, O)), N, O, I);")]),
    Fault("bias", "A dropped bias gradient", "linear",
          "The gradient of every linear layer's bias stays 0: the biases never move.", "",
          "db = rows.sum(axis=0) -> db = np.zeros_like(rows[0])",
          [("for (let i = 0; i < dy.length; i++) db[i % O] += dy[i];", "")]),
    Fault("positions", "One example for all", "positions",
          "The position vectors serve all examples of a step. Their gradient takes one only.", "",
          "dy.sum(axis=0) -> dy[0]",
          [("for (let i = 0; i < dy.length; i++) dw[i % used] += dy[i];",
            "for (let i = 0; i < used; i++) dw[i % used] += dy[i];")]),
    Fault("backward_mask", "No causal mask", "attention", "",
          "To save memory it computes the probabilities anew, and forgets the causal mask. The "
          "loss does not show it.",
          "q, k, v, probabilities, mask = cache -> q, k, v, _, mask = cache\n"
          "probabilities, _ = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]))"),
    Fault("residual", "A forgotten residual", "residual",
          "x went two ways, past the branch and through it. Only the branch's gradient comes back.",
          "Only the way through the branch comes back; what went past it is lost.",
          "return dy + dbranch -> return dbranch",
          [("dx[i] = dy[i] + dbranch[i];", "dx[i] = dbranch[i];")]),
    Fault("scale", "A lost 1/√D", "attention",
          "The scores were divided by √D on the way forward, but not on the way back.",
          "The gradient of queries and keys is √D times as large as it should be. Its direction is "
          "right.", "_ / math.sqrt(D) -> _", [QUIET]),
    Fault("keys", "Keys without transpose", "attention",
          "dK = dS Q instead of dSᵀ Q: keys get the gradients that belong to queries.", "",
          "ds.swapaxes(-1, -2) @ q -> ds @ q",
          [("matmul(inside(k), transposed(matrix(ds, T, s)), q, T, T, D);",
            "matmul(inside(k), matrix(ds, T, s), q, T, T, D);")]),
    Fault("gelu", "Half of a product rule", "gelu",
          "GELU is x times something that depends on x. Half of the product rule is lost.", "",
          "_ + 0.5 * x * (1.0 - t * t) * du -> _",
          [("dx[i] = dy[i] * (0.5 * (1 + t) + 0.5 * x[i] * (1 - t * t) * du);",
            "dx[i] = dy[i] * 0.5 * (1 + t);")]),
    Fault("softmax", "Softmax without its sum", "softmax",
          "The outputs of a softmax share one sum. Their gradient forgets the others.", "",
          "_ - (dy * y).sum(axis=-1, keepdims=True) -> _",
          [("dx[i] = y[i] * (dy[i] - sum);", "dx[i] = y[i] * dy[i];")]),
    Fault("target", "A forgotten target", "cross_entropy",
          "p instead of p − one-hot: the gradient no longer knows the right answer.", "",
          "_ - 1.0 -> _",
          [("dlogits[i] = (p[i] - (i % V === targets[Math.floor(i / V)] ? 1 : 0)) / n;",
            "dlogits[i] = p[i] / n;")]),
    Fault("alone", "Tokens see only themselves", "attention",
          "No token sees another one: attention carries nothing. The gradient is right.",
          javascript=[(MASK, "if (key !== query) scores[i] = -Infinity;")], hides=True),
    Fault("mask", "No causal mask at all", "attention",
          "Every token also sees the tokens after it. The gradient is right, but of another model.",
          javascript=[(MASK, "")], hides=True),
    Fault("unscaled", "No 1/√D at all", "attention",
          "Neither pass divides by √D. The gradient is right, but attention starts much sharper.",
          javascript=[("scores[i] *= 1 / Math.sqrt(D);", ""), QUIET], hides=True),
]
