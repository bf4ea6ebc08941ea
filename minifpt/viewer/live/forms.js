// The form of attention: how a frozen head compares two tokens. After trunks/forms.py.

// Turn the keys of a new block against its queries: W_k = cos(a) W_q + sin(a) Z, in place, where Z
// are the keys that were drawn.  w is c_attn's (C, 3C); the distribution of each number stays.
function turn_keys(w, degrees) {
  const C = w.shape[0], a = degrees * Math.PI / 180;
  for (let r = 0; r < C; r++)
    for (let i = r * 3 * C; i < r * 3 * C + C; i++)
      w[i + C] = Math.cos(a) * w[i] + Math.sin(a) * w[i + C];
}

// F = X N W_q W_k' N' X' of the first block, its heads together, with N the centring and the scale
// of the norm before it: how much an input asks for another one.  x (n, C) -> F (n, n).
function form(model, x) {
  const [n, C] = x.shape, scale = model.parameters["trunk.h.0.ln_1.weight"].data;
  const w = model.parameters["trunk.h.0.attn.c_attn.weight"].data, f = empty(x, [n, n]);
  const [rows_in, q, k] = [0, 1, 2].map(() => empty(x, [n, C]));
  for (let r = 0; r < n; r++) {
    let mean = 0;
    for (let c = 0; c < C; c++) mean += x[r * C + c] / C;
    for (let c = 0; c < C; c++) rows_in[r * C + c] = (x[r * C + c] - mean) * scale[c];
  }
  matmul(matrix(q, C), matrix(rows_in, C), matrix(w, 3 * C), n, C, C);
  matmul(matrix(k, C), matrix(rows_in, C), matrix(w, 3 * C, C), n, C, C);
  matmul(matrix(f, n), matrix(q, C), transposed(matrix(k, C)), n, C, n);
  return f;
}

// How much the input layer looks for likeness: the trace of the form of two inputs over its norm.
function match(model) {
  const f = form(model, model.parameters["input.weight"].data), n = f.shape[0];
  let trace = 0;
  for (let i = 0; i < n; i++) trace += f[i * n + i];
  return trace / (Math.sqrt(dot(f, f)) || 1);
}

// The symmetric part of the form in all C channels.
function symmetric_form(model) {
  const C = model.config.n_embd, one = empty(new Float64Array(0), [C, C]);
  for (let i = 0; i < C; i++) one[i * C + i] = 1;
  const f = form(model, one), s = empty(f, [C, C]);
  for (let i = 0; i < s.length; i++) s[i] = (f[i] + f[(i % C) * C + Math.floor(i / C)]) / 2;
  return s;
}

// Eigenvalues of a symmetric matrix, the smallest first, and the rows that are their directions, by
// Jacobi: turn two axes at a time until nothing is left beside the diagonal.
function eigen(s) {
  const n = s.shape[0], a = Float64Array.from(s), v = new Float64Array(n * n);
  for (let i = 0; i < n; i++) v[i * n + i] = 1;
  const turn = (m, i, j, cos, sin) => { [m[i], m[j]] = [cos * m[i] - sin * m[j],
    sin * m[i] + cos * m[j]]; };
  for (let sweep = 0; sweep < 30; sweep++) {
    let rest = 0;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) rest += a[p * n + q] ** 2;
    if (rest <= 1e-22 * dot(a, a)) break;
    for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) {
      if (a[p * n + q] === 0) continue;
      const theta = (a[q * n + q] - a[p * n + p]) / (2 * a[p * n + q]);
      const tan = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1));
      const cos = 1 / Math.hypot(tan, 1), sin = tan * cos;
      for (let k = 0; k < n; k++) turn(a, k * n + p, k * n + q, cos, sin);
      for (let k = 0; k < n; k++) turn(a, p * n + k, q * n + k, cos, sin);
      for (let k = 0; k < n; k++) turn(v, p * n + k, q * n + k, cos, sin);
    }
  }
  const order = Array.from({length: n}, (_, i) => i).sort((i, j) => a[i * n + i] - a[j * n + j]);
  return {values: order.map(i => a[i * n + i]), rows: order.map(i => v.slice(i * n, (i + 1) * n))};
}

// Start the input layer in the directions with the largest eigenvalues, "aligned", or with the
// smallest ones, "opposed"; its rows keep their length.
function start_input(model, start) {
  const w = model.parameters["input.weight"].data, [n, C] = w.shape;
  const size = Math.sqrt(dot(w, w) / n), {rows: directions} = eigen(symmetric_form(model));
  if (start === "aligned") directions.reverse();
  for (let i = 0; i < n; i++) directions[i].forEach((v, c) => { w[i * C + c] = size * v; });
}
