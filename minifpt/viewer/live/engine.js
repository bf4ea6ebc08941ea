// The mathematics of a GPT-2 in plain JavaScript: functional.py, in its order and with its names.
//
//     [y, cache]       = op(x, ...)
//     [dx, dw, db]     = op_backward(dy, cache)
//
// Every operation stands directly above its backward pass. `dy` is the gradient of one scalar loss
// with respect to y and has y's shape. An operation with weights takes `need`, which says which
// gradients will be wanted; a gradient that is not wanted is null and is never computed.
//
// An array is a Float32Array, or a Float64Array, that carries its shape. The type of the input is
// the type of all that follows. A sum is held in a JavaScript number, which has 64 bits, and is
// rounded when it is stored.
//
// FAULT is "" or the id of one of BREAKS in viewer/steps/differences.py, which one line below then makes.
//
// Letters for shapes: B batch, T tokens, C channels, H heads, D = C / H, V classes or vocabulary.
"use strict";

const work = {multiply_adds: 0};           // counted by matmul

function empty(like, shape) {              // zeros of the same type
  const y = new like.constructor(shape.reduce((a, b) => a * b, 1));
  y.shape = shape;
  return y;
}
function reshape(x, shape) {               // the same numbers under another shape
  const y = x.subarray();
  y.shape = shape;
  return y;
}
const last = x => x.shape[x.shape.length - 1];
const rows = x => x.length / last(x);

// A matrix inside an array: where it starts, and how far its rows and its columns are apart.
const matrix = (array, columns, start = 0) => ({array, start, row: columns, column: 1});
const transposed = m => ({array: m.array, start: m.start, row: m.column, column: m.row});

// y = a @ b, with a (N, K) and b (K, M); four columns at a time, so that a is read less often.
function matmul(y, a, b, N, K, M) {
  const Y = y.array, A = a.array, W = b.array, step = b.column;
  work.multiply_adds += N * K * M;
  for (let n = 0; n < N; n++) {
    for (let m = 0; m < M; m += 4) {
      const width = Math.min(4, M - m);
      let i = a.start + n * a.row, j = b.start + m * step, s0 = 0, s1 = 0, s2 = 0, s3 = 0;
      if (width === 4) {
        for (let k = 0; k < K; k++, i += a.column, j += b.row) {
          const v = A[i];
          s0 += v * W[j]; s1 += v * W[j + step];
          s2 += v * W[j + 2 * step]; s3 += v * W[j + 3 * step];
        }
      } else {
        for (let k = 0; k < K; k++, i += a.column, j += b.row) {
          const v = A[i];
          s0 += v * W[j];
          if (width > 1) s1 += v * W[j + step];
          if (width > 2) s2 += v * W[j + 2 * step];
        }
      }
      const at = y.start + n * y.row + m * y.column;
      Y[at] = s0;
      if (width > 1) Y[at + y.column] = s1;
      if (width > 2) Y[at + 2 * y.column] = s2;
      if (width > 3) Y[at + 3 * y.column] = s3;
    }
  }
}

// ---------------------------------------------------------------------------- linear

// y = x @ w + b: x (..., I), w (I, O), b (O) -> y (..., O).  need is for [dx, dw, db].
function linear(x, w, b, need = [true, true, true]) {
  const [I, O] = w.shape;
  const y = empty(x, [...x.shape.slice(0, -1), O]);
  matmul(matrix(y, O), matrix(x, I), matrix(w, O), rows(x), I, O);
  for (let i = 0; i < y.length; i++) y[i] += b[i % O];
  return [y, {x, w, need}];
}

// dx = dy @ w.T, dw = x.T @ dy, db = the sum of dy over all rows.
function linear_backward(dy, {x, w, need}) {
  const [I, O] = w.shape, N = rows(dy);
  let dx = null, dw = null, db = null;
  if (need[0]) {
    dx = empty(dy, x.shape);
    const right = FAULT !== "transpose" || I !== O;
    matmul(matrix(dx, I), matrix(dy, O), right ? transposed(matrix(w, O)) : matrix(w, O), N, O, I);
  }
  if (need[1]) {
    dw = empty(dy, w.shape);
    matmul(matrix(dw, O), transposed(matrix(x, I)), matrix(dy, O), I, N, O);
  }
  if (need[2]) {
    db = empty(dy, [O]);
    for (let i = 0; i < dy.length; i++) db[i % O] += dy[i];
  }
  return [dx, dw, db];
}

// ------------------------------------------------------------------------- embedding

// Letters run forward only. Row lookup: y = w[ids], ids (...) integers, w (V, C) -> y (..., C).
function embedding(ids, w) {
  const C = w.shape[1], y = empty(w, [...ids.shape, C]);
  for (let n = 0; n < ids.length; n++)
    for (let c = 0; c < C; c++) y[n * C + c] = w[ids[n] * C + c];
  return [y, null];
}

// Scores by the table that embeds the tokens: y = x @ w.T, x (..., C), w (V, C) -> y (..., V).
function unembedding(x, w) {
  const [V, C] = w.shape, y = empty(x, [...x.shape.slice(0, -1), V]);
  matmul(matrix(y, V), matrix(x, C), transposed(matrix(w, C)), rows(x), C, V);
  return [y, null];
}

// Add to each token the vector of its position: y[:, t] = x[:, t] + w[t].
function positions(x, w, need = [true, true]) {
  const used = x.shape[1] * x.shape[2], y = empty(x, x.shape);
  for (let i = 0; i < y.length; i++) y[i] = x[i] + w[i % used];
  return [y, {shape: w.shape, used, need}];
}

// dx = dy, dw[t] = the sum of dy[:, t] over the batch.
function positions_backward(dy, {shape, used, need}) {
  const dw = need[1] ? empty(dy, shape) : null;
  const added = FAULT === "positions" ? used : dy.length;
  if (need[1]) for (let i = 0; i < added; i++) dw[i % used] += dy[i];
  return [need[0] ? dy : null, dw];
}

// ------------------------------------------------------------------------ layer norm

// xhat = (x - mean(x)) / sqrt(var(x) + eps), y = xhat * w + b, for each token on its own.
function layer_norm(x, w, b, need = [true, true, true], eps = 1e-5) {
  const C = w.length, y = empty(x, x.shape), xhat = empty(x, x.shape), rstd = empty(x, [rows(x)]);
  for (let n = 0; n < rows(x); n++) {
    let mean = 0, variance = 0;
    for (let i = n * C; i < (n + 1) * C; i++) mean += x[i] / C;
    for (let i = n * C; i < (n + 1) * C; i++) variance += (x[i] - mean) ** 2 / C;
    rstd[n] = 1 / Math.sqrt(variance + eps);
    for (let c = 0, i = n * C; c < C; c++, i++) {
      xhat[i] = (x[i] - mean) * rstd[n];
      y[i] = xhat[i] * w[c] + b[c];
    }
  }
  return [y, {xhat, rstd, w, need}];
}

// With g = dy * w: dx = (g - mean(g) - xhat * mean(g * xhat)) * rstd, dw = the sum of dy * xhat and
// db = the sum of dy, over all tokens.
function layer_norm_backward(dy, {xhat, rstd, w, need}) {
  const C = w.length, N = rows(dy);
  const dx = need[0] ? empty(dy, dy.shape) : null;
  const dw = need[1] ? empty(dy, [C]) : null, db = need[2] ? empty(dy, [C]) : null;
  for (let n = 0; n < N; n++) {
    let shift = 0, stretch = 0;            // the parts of g that would shift or stretch the row
    for (let c = 0, i = n * C; c < C; c++, i++) {
      shift += dy[i] * w[c] / C;
      stretch += dy[i] * w[c] * xhat[i] / C;
    }
    for (let c = 0, i = n * C; c < C; c++, i++) {
      if (need[0]) dx[i] = (dy[i] * w[c] - shift - xhat[i] * stretch) * rstd[n];
      if (need[1]) dw[c] += dy[i] * xhat[i] / (FAULT === "mean" ? N : 1);
      if (need[2]) db[c] += dy[i];
    }
  }
  return [dx, dw, db];
}

// ----------------------------------------------------------------------- activations

const GELU_A = Math.sqrt(2 / Math.PI), GELU_B = 0.044715;
const tanh = u => 1 - 2 / (Math.exp(2 * u) + 1);           // Math.tanh takes several times as long

// y = x/2 * (1 + tanh(u)), u = sqrt(2/pi) * (x + 0.044715 x^3).
function gelu(x) {
  const y = empty(x, x.shape);
  for (let i = 0; i < x.length; i++)
    y[i] = 0.5 * x[i] * (1 + tanh(GELU_A * (x[i] + GELU_B * x[i] * x[i] * x[i])));
  return [y, {x}];
}

// dx = dy * ((1 + t)/2 + x/2 * (1 - t^2) * du/dx), with t = tanh(u).
function gelu_backward(dy, {x}) {
  const dx = empty(dy, dy.shape);
  for (let i = 0; i < x.length; i++) {
    const t = tanh(GELU_A * (x[i] + GELU_B * x[i] * x[i] * x[i]));
    const du = GELU_A * (1 + 3 * GELU_B * x[i] * x[i]);
    dx[i] = dy[i] * (0.5 * (1 + t) + 0.5 * x[i] * (1 - t * t) * du);
  }
  return [dx];
}

// --------------------------------------------------------------------------- softmax

// y_i = exp(x_i) / sum_j exp(x_j) along the last axis; the largest x of a row is subtracted first.
function softmax(x) {
  const N = last(x), y = empty(x, x.shape);
  for (let start = 0; start < x.length; start += N) {
    let top = -Infinity, sum = 0;
    for (let i = start; i < start + N; i++) top = Math.max(top, x[i]);
    for (let i = start; i < start + N; i++) sum += y[i] = Math.exp(x[i] - top);
    for (let i = start; i < start + N; i++) y[i] /= sum;
  }
  return [y, {y}];
}

// dx = y * (dy - sum_j dy_j y_j): a row's outputs always sum to 1.
function softmax_backward(dy, {y}) {
  const N = last(y), dx = empty(dy, dy.shape);
  for (let start = 0; start < y.length; start += N) {
    let sum = 0;
    for (let i = start; i < start + N; i++) sum += dy[i] * y[i];
    for (let i = start; i < start + N; i++) dx[i] = y[i] * (dy[i] - sum);
  }
  return [dx];
}

// -------------------------------------------------------------- multi-head attention

// For each head S = Q K^T / sqrt(D), A = softmax(S), y = A V.  qkv (B, T, 3C): queries, keys and
// values side by side, each H heads of D channels -> y (B, T, C).  When causal, a token sees itself
// and the tokens before it.  `cuts` are pairs [query, key]: that query does not see that key.
function attention(qkv, n_head, causal = true, cuts = []) {
  const [B, T, C3] = qkv.shape, C = C3 / 3, D = C / n_head;
  const scores = empty(qkv, [B, n_head, T, T]), y = empty(qkv, [B, T, C]);
  each_head(qkv, n_head, (q, k, v, s) => {
    matmul(matrix(scores, T, s), q, transposed(k), T, D, T);
  });
  for (let i = 0; i < scores.length; i++) {
    const query = Math.floor(i / T) % T, key = i % T;
    scores[i] *= 1 / Math.sqrt(D);
    if (causal && key > query) scores[i] = -Infinity;
    if (cuts.length && cuts.some(([q, k]) => q === query && k === key)) scores[i] = -Infinity;
  }
  const [probabilities] = softmax(scores);
  each_head(qkv, n_head, (q, k, v, s, at) => {
    matmul(matrix(y, C, at), matrix(probabilities, T, s), v, T, T, D);
  });
  return [y, {qkv, n_head, probabilities}];
}

// dV = A^T dy, dA = dy V^T, dS = softmax_backward(dA), dQ = dS K / sqrt(D), dK = dS^T Q / sqrt(D).
function attention_backward(dy, {qkv, n_head, probabilities}) {
  const [B, T, C3] = qkv.shape, C = C3 / 3, D = C / n_head;
  const dqkv = empty(dy, qkv.shape), da = empty(dy, [B, n_head, T, T]);
  each_head(qkv, n_head, (q, k, v, s, at) => {
    matmul(matrix(da, T, s), matrix(dy, C, at), transposed(v), T, D, T);
  });
  const [ds] = softmax_backward(da, {y: probabilities});
  if (FAULT !== "scale") for (let i = 0; i < ds.length; i++) ds[i] *= 1 / Math.sqrt(D);
  const inside = m => ({...m, array: dqkv});               // the same place in the gradient
  each_head(qkv, n_head, (q, k, v, s, at) => {
    matmul(inside(v), transposed(matrix(probabilities, T, s)), matrix(dy, C, at), T, T, D);
    matmul(inside(q), matrix(ds, T, s), k, T, T, D);
    matmul(inside(k), transposed(matrix(ds, T, s)), q, T, T, D);
  });
  return [dqkv];
}

// Call f(q, k, v, s, at) for each head of each example: q, k and v are (T, D) inside qkv, s is
// where the head's (T, T) scores begin, at where its (T, D) outputs do.
function each_head(qkv, n_head, f) {
  const [B, T, C3] = qkv.shape, C = C3 / 3, D = C / n_head;
  for (let b = 0; b < B; b++) {
    for (let h = 0; h < n_head; h++) {
      const [q, k, v] = [0, C, 2 * C].map(part => matrix(qkv, C3, b * T * C3 + part + h * D));
      f(q, k, v, (b * n_head + h) * T * T, b * T * C + h * D);
    }
  }
}

// -------------------------------------------------------------------------- residual

// y = x + branch, where the branch is a function of x.
function residual(x, branch) {
  const y = empty(x, x.shape);
  for (let i = 0; i < x.length; i++) y[i] = x[i] + branch[i];
  return [y, null];
}

// dx = dy + dbranch: x went two ways, and the gradients of both add up.
function residual_backward(dy, dbranch) {
  const dx = empty(dy, dy.shape);
  for (let i = 0; i < dy.length; i++) dx[i] = (FAULT === "residual" ? 0 : dy[i]) + dbranch[i];
  return [dx];
}

// The last n tokens: x (B, T, C) -> y (B, n, C).
function last_tokens(x, n) {
  const [B, T, C] = x.shape, y = empty(x, [B, n, C]);
  for (let b = 0; b < B; b++)
    y.set(x.subarray((b * T + T - n) * C, (b + 1) * T * C), b * n * C);
  return [y, {T}];
}

// dy (B, n, C) -> dx (B, T, C): 0 for the tokens that were not read.
function last_tokens_backward(dy, {T}) {
  const [B, n, C] = dy.shape, dx = empty(dy, [B, T, C]);
  for (let b = 0; b < B; b++)
    dx.set(dy.subarray(b * n * C, (b + 1) * n * C), (b * T + T - n) * C);
  return [dx];
}

// --------------------------------------------------------------------- cross-entropy

// Mean negative log-likelihood in nats: mean(log(sum_j exp(logits_j)) - logits[target]).
function cross_entropy(logits, targets) {
  const V = logits.length / targets.length;
  const [p] = softmax(reshape(logits, [targets.length, V]));
  let loss = 0;
  for (let n = 0; n < targets.length; n++) {
    let top = -Infinity, sum = 0;
    for (let j = 0; j < V; j++) top = Math.max(top, logits[n * V + j]);
    for (let j = 0; j < V; j++) sum += Math.exp(logits[n * V + j] - top);
    loss += top + Math.log(sum) - logits[n * V + targets[n]];
  }
  return [loss / targets.length, {p, targets, shape: logits.shape}];
}

// dlogits = (softmax(logits) - one_hot(targets)) / number of targets.
function cross_entropy_backward({p, targets, shape}) {
  const V = last(p), dlogits = empty(p, shape), n = targets.length;
  for (let i = 0; i < p.length; i++)
    dlogits[i] = (p[i] - (i % V === targets[Math.floor(i / V)] ? 1 : 0)) / n;
  return [dlogits];
}

