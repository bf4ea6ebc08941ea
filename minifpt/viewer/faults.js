// The faults: each is a line of engine.js that is changed, as it easily happens.  `changes` are
// pairs of text, right and wrong; the right text occurs once in the engine.  `hides` says that the
// forward pass is changed with its gradient, so that a gradient check has nothing to notice.
"use strict";
const FAULTS = [
  {id: "transpose", title: "missing transpose", op: "linear",
    text: "The gradient goes back through a square matrix, where it needs the transpose. The " +
      "shapes fit, so nothing complains.",
    changes: [["matmul(matrix(dx, I), matrix(dy, O), transposed(matrix(w, O)), N, O, I);",
      "matmul(matrix(dx, I), matrix(dy, O), I === O ? matrix(w, O) : " +
      "transposed(matrix(w, O)), N, O, I);"]]},
  {id: "bias", title: "dropped bias gradient", op: "linear",
    text: "The gradient of every linear layer's bias stays 0: the biases never move.",
    changes: [["for (let i = 0; i < dy.length; i++) db[i % O] += dy[i];", ""]]},
  {id: "positions", title: "one example for all", op: "positions",
    text: "The position vectors serve all examples of a batch. Their gradient takes one only.",
    changes: [["for (let i = 0; i < dy.length; i++) dw[i % used] += dy[i];",
      "for (let i = 0; i < used; i++) dw[i % used] += dy[i];"]]},
  {id: "mean", title: "mean for a sum", op: "layer_norm",
    text: "The scale of a layer norm serves all tokens: its gradient is a sum. Here it is a mean.",
    changes: [["if (need[1]) dw[c] += dy[i] * xhat[i];",
      "if (need[1]) dw[c] += dy[i] * xhat[i] / N;"]]},
  {id: "constants", title: "mean and variance as constants", op: "layer_norm",
    text: "The mean and the variance depend on x, too. This backward pass forgets that.",
    changes: [["dx[i] = (dy[i] * w[c] - shift - xhat[i] * stretch) * rstd[n];",
      "dx[i] = dy[i] * w[c] * rstd[n];"]]},
  {id: "gelu", title: "half of a product rule", op: "gelu",
    text: "GELU is x times something that depends on x. Half of the product rule is lost.",
    changes: [["dx[i] = dy[i] * (0.5 * (1 + t) + 0.5 * x[i] * (1 - t * t) * du);",
      "dx[i] = dy[i] * 0.5 * (1 + t);"]]},
  {id: "softmax", title: "softmax without its sum", op: "softmax",
    text: "The outputs of a softmax share one sum. Their gradient forgets the others.",
    changes: [["dx[i] = y[i] * (dy[i] - sum);", "dx[i] = y[i] * dy[i];"]]},
  {id: "scale", title: "lost 1/√D", op: "attention",
    text: "The scores were divided by √D on the way forward, but not on the way back.",
    changes: [["for (let i = 0; i < ds.length; i++) ds[i] *= 1 / Math.sqrt(D);", ""]]},
  {id: "keys", title: "keys without transpose", op: "attention",
    text: "dK = dS Q instead of dSᵀ Q: keys get the gradients that belong to queries.",
    changes: [["matmul(inside(k), transposed(matrix(ds, T, s)), q, T, T, D);",
      "matmul(inside(k), matrix(ds, T, s), q, T, T, D);"]]},
  {id: "residual", title: "forgotten residual", op: "residual",
    text: "x went two ways, past the branch and through it. Only the branch's gradient comes back.",
    changes: [["dx[i] = dy[i] + dbranch[i];", "dx[i] = dbranch[i];"]]},
  {id: "target", title: "forgotten target", op: "cross_entropy",
    text: "p instead of p − one-hot: the gradient no longer knows the right answer.",
    changes: [["dlogits[i] = (p[i] - (i % V === targets[Math.floor(i / V)] ? 1 : 0)) / n;",
      "dlogits[i] = p[i] / n;"]]},
  {id: "alone", title: "tokens see only themselves", op: "attention", hides: true,
    text: "No token sees another one: attention carries nothing. The gradient is right.",
    changes: [["if (causal && key > query) scores[i] = -Infinity;",
      "if (key !== query) scores[i] = -Infinity;"]]},
  {id: "mask", title: "no causal mask", op: "attention", hides: true,
    text: "Every token also sees the tokens after it. The gradient is right, but of another model.",
    changes: [["if (causal && key > query) scores[i] = -Infinity;", ""]]},
  {id: "unscaled", title: "no 1/√D at all", op: "attention", hides: true,
    text: "Neither pass divides by √D. The gradient is right, but attention starts much sharper.",
    changes: [["scores[i] *= 1 / Math.sqrt(D);", ""],
      ["for (let i = 0; i < ds.length; i++) ds[i] *= 1 / Math.sqrt(D);", ""]]},
];

// The engine's text with a fault in it, as an expression whose value is an object of its functions.
function engine_text(source, fault) {
  for (const [right, wrong] of fault ? fault.changes : []) {
    if (source.split(right).length !== 2) throw new Error(`${fault.id}: not one line ${right}`);
    source = source.replace(right, () => wrong);
  }
  const names = Array.from(source.matchAll(/^(?:function|const) (\w+)/gm), m => m[1]);
  return `(() => {${source}\nreturn {${names.join(", ")}};})()`;
}
