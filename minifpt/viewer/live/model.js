// The model and its training in plain JavaScript: layers.py, gpt2.py, fpt.py and optim.py, and the
// three tasks. It calls the operations of engine.js.

// A model is {config, parameters, cuts}; a parameter is {data, grad, trainable} under GPT-2's own
// name, and cuts are the pairs of tokens between which attention carries nothing.

// `call` runs every operation: the page puts a table of letters in the place of two of them.
const plain_call = (op, name, inputs) => op(...inputs);

function forward(model, x, call = plain_call) {
  const {config, parameters} = model, cache = {outputs: {}};
  let below = false;                       // whether anything so far has something to learn
  const run = (name, op, x, ...options) => {
    const own = [`${name}.weight`, `${name}.bias`].map(n => parameters[n]).filter(p => p);
    const need = [below, ...own.map(p => p.trainable)];
    below = need.some(n => n);
    const [y, c] = call(op, name, own.length ? [x, ...own.map(p => p.data), need] : [x, ...options]);
    cache[name] = c;
    cache.outputs[name] = y;
    return y;
  };
  x = run("input", linear, x);
  x = run("trunk.wpe", positions, x);
  for (let i = 0; i < config.n_layer; i++) {
    const h = `trunk.h.${i}`;
    let a = run(`${h}.ln_1`, layer_norm, x);
    a = run(`${h}.attn.c_attn`, linear, a);
    a = run(`${h}.attn`, attention, a, config.n_head, config.causal, model.cuts);
    a = run(`${h}.attn.c_proj`, linear, a);
    x = run(`${h}.residual_1`, residual, x, a);
    let m = run(`${h}.ln_2`, layer_norm, x);
    m = run(`${h}.mlp.c_fc`, linear, m);
    m = run(`${h}.mlp.act`, gelu, m);
    m = run(`${h}.mlp.c_proj`, linear, m);
    x = run(`${h}.residual_2`, residual, x, m);
  }
  x = run("trunk.ln_f", layer_norm, x);
  x = run("last", last_tokens, x, model.output_tokens);
  return [run("output", linear, x), cache];
}

// Fill .grad of the trainable parameters.  A gradient that is null is wanted by nothing further
// down, and the way back ends there.
function backward(model, dlogits, cache) {
  const {config, parameters} = model;
  for (const p of Object.values(parameters)) p.grad = null;
  const run = (name, op, dy) => {
    if (dy === null) return null;
    const [dx, ...grads] = op(dy, cache[name]);
    [`${name}.weight`, `${name}.bias`].filter(n => parameters[n]).forEach((n, i) => {
      parameters[n].grad = grads[i];
    });
    return dx;
  };
  const add = (name, dy, branch) => branch === null ? null :
    residual_backward(dy, branch)[0];
  let dx = run("output", linear_backward, dlogits);
  dx = run("last", last_tokens_backward, dx);
  dx = run("trunk.ln_f", layer_norm_backward, dx);
  for (let i = config.n_layer - 1; i >= 0 && dx !== null; i--) {
    const h = `trunk.h.${i}`;
    let dm = run(`${h}.mlp.c_proj`, linear_backward, dx);
    dm = run(`${h}.mlp.act`, gelu_backward, dm);
    dm = run(`${h}.mlp.c_fc`, linear_backward, dm);
    dm = run(`${h}.ln_2`, layer_norm_backward, dm);
    dx = add(`${h}.residual_2`, dx, dm);
    let da = run(`${h}.attn.c_proj`, linear_backward, dx);
    da = run(`${h}.attn`, attention_backward, da);
    da = run(`${h}.attn.c_attn`, linear_backward, da);
    da = run(`${h}.ln_1`, layer_norm_backward, da);
    dx = add(`${h}.residual_1`, dx, da);
  }
  dx = run("trunk.wpe", positions_backward, dx);
  run("input", linear_backward, dx);
}

// One forward and one backward pass on a batch {x, y}: the loss and the share of right choices.
function learn(model, {x, y}) {
  const [logits, cache] = forward(model, x);
  const [loss, loss_cache] = cross_entropy(logits, y);
  backward(model, cross_entropy_backward(loss_cache)[0], cache);
  return {loss, accuracy: accuracy(logits, y)};
}

function evaluate(model, {x, y}) {
  const [logits] = forward(model, x);
  return {loss: cross_entropy(logits, y)[0], accuracy: accuracy(logits, y)};
}

function choices(logits, count) {          // the class with the highest score, for each choice
  const V = logits.length / count, chosen = [];
  for (let n = 0; n < count; n++) {
    const scores = logits.subarray(n * V, (n + 1) * V);
    chosen.push(scores.indexOf(Math.max(...scores)));
  }
  return chosen;
}

function accuracy(logits, y) {
  return choices(logits, y.length).filter((c, n) => c === y[n]).length / y.length;
}

// The slope of the loss along one number of a parameter, from two losses beside it.
function numerical_gradient(model, batch, name, index, nudge = 1e-5) {
  const {data} = model.parameters[name], value = data[index];
  data[index] = value + nudge;
  const {loss: above} = evaluate(model, batch);
  data[index] = value - nudge;
  const {loss: below} = evaluate(model, batch);
  data[index] = value;
  return (above - below) / (2 * nudge);
}

// ---------------------------------------------------------------------------- optim

// m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2, with t the steps so far:
// x = x - lr * (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
function adam_step(model, lr, b1 = 0.9, b2 = 0.999, eps = 1e-8) {
  for (const p of Object.values(model.parameters)) {
    if (!p.grad) continue;
    p.t = (p.t || 0) + 1;                    // of this parameter: it may have been frozen
    p.m = p.m || empty(p.data, p.data.shape);
    p.v = p.v || empty(p.data, p.data.shape);
    for (let i = 0; i < p.data.length; i++) {
      const g = p.grad[i];
      p.m[i] = b1 * p.m[i] + (1 - b1) * g;
      p.v[i] = b2 * p.v[i] + (1 - b2) * g * g;
      p.data[i] -= lr / (1 - b1 ** p.t) * p.m[i]
        / (Math.sqrt(p.v[i] / (1 - b2 ** p.t)) + eps);
    }
  }
}

// Scale all gradients so that their common norm is at most max_norm; the norm before.
function clip_grad_norm(model, max_norm = 1) {
  const grads = Object.values(model.parameters).map(p => p.grad).filter(g => g);
  const norm = Math.sqrt(grads.reduce((sum, g) => sum + dot(g, g), 0));
  if (norm > max_norm) for (const g of grads) g.forEach((v, i) => { g[i] = v * max_norm / norm; });
  return norm;
}

function dot(a, b) {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
}

function train_step(model, batch, lr) {
  const result = learn(model, batch);
  result.norm = clip_grad_norm(model);
  if (Number.isFinite(result.loss) && Number.isFinite(result.norm)) adam_step(model, lr);
  return result;
}

// ---------------------------------------------------------------------------- random numbers

// A generator for a seed and a name: mulberry32, with normal numbers by Box and Muller.
function generator(seed, name = "") {
  let state = seed >>> 0;
  for (const letter of name) state = Math.imul(state ^ letter.charCodeAt(0), 2654435761) >>> 0;
  const uniform = () => {
    state = (state + 0x6D2B79F5) >>> 0;
    let t = Math.imul(state ^ (state >>> 15), state | 1);
    t = (t + Math.imul(t ^ (t >>> 7), t | 61)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  return {uniform, normal, bit: () => uniform() < 0.5 ? 0 : 1};
}

// ---------------------------------------------------------------------------- the model

const GROUPS = [["input", /^input/], ["pos", /wpe/], ["ln", /ln_/], ["attn", /\.attn\./],
  ["mlp", /\.mlp\./], ["output", /^output/]];
const group_of = name => GROUPS.find(([, pattern]) => pattern.test(name))[0];
const part_of = name => name.replace(/^trunk\./, "").replace(/(\.c_\w+)?\.(weight|bias)$/, "");

// Every parameter's name and shape.
function shapes({n_layer, n_embd: C}, task) {
  const list = [["input.weight", [task.input_dim, C]], ["input.bias", [C]],
    ["trunk.wpe.weight", [task.tokens, C]]];
  for (let i = 0; i < n_layer; i++) {
    const h = `trunk.h.${i}`;
    list.push([`${h}.ln_1.weight`, [C]], [`${h}.ln_1.bias`, [C]],
      [`${h}.attn.c_attn.weight`, [C, 3 * C]], [`${h}.attn.c_attn.bias`, [3 * C]],
      [`${h}.attn.c_proj.weight`, [C, C]], [`${h}.attn.c_proj.bias`, [C]],
      [`${h}.ln_2.weight`, [C]], [`${h}.ln_2.bias`, [C]],
      [`${h}.mlp.c_fc.weight`, [C, 4 * C]], [`${h}.mlp.c_fc.bias`, [4 * C]],
      [`${h}.mlp.c_proj.weight`, [4 * C, C]], [`${h}.mlp.c_proj.bias`, [C]]);
  }
  list.push(["trunk.ln_f.weight", [C]], ["trunk.ln_f.bias", [C]],
    ["output.weight", [C, task.output_dim]], ["output.bias", [task.output_dim]]);
  return list;
}

// A model for a task.  The trunk's numbers come from `trunk`, {kind, scale, arrays, statistics}:
// "pretrained" takes its arrays, "statistics" draws with their means and standard deviations,
// "random" draws with standard deviation scale / sqrt(C), as the paper does at 0.55.  "turned" is
// one random block with one head, whose keys stand at `angle` degrees to its queries, and whose
// matrices that write into the residual stream are divided by sqrt(2), as GPT-2 does.  The input
// layer starts orthogonal with gain 1.41, or as `start` says; the output layer uniform within
// 1 / sqrt(C).
const TURNED = {n_layer: 1, n_head: 1, n_embd: 64, causal: true};
function make_model(config, task, trunk, seed, type = Float32Array) {
  if (trunk.kind === "turned") config = TURNED;
  const parameters = {}, C = config.n_embd;
  for (const [name, shape] of shapes(config, task)) {
    const data = empty(new type(0), shape), rng = generator(seed, name);
    const own = name.replace("trunk.", "");
    if (name === "input.weight") orthogonal(data, rng, 1.41);
    else if (name.startsWith("output")) data.forEach((_, i) => {
      data[i] = (2 * rng.uniform() - 1) / Math.sqrt(C);
    });
    else if (name.startsWith("trunk") && trunk.kind === "pretrained")
      data.set(trunk.arrays[own].subarray(0, data.length));
    else if (name.startsWith("trunk") && trunk.kind === "statistics") {
      const [mean, deviation] = trunk.statistics[own];
      data.forEach((_, i) => { data[i] = mean + deviation * rng.normal(); });
    } else if (shape.length === 2) {
      const deviation = trunk.scale / Math.sqrt(C) /
        (trunk.kind === "turned" && name.includes("c_proj") ? Math.SQRT2 : 1);
      data.forEach((_, i) => { data[i] = deviation * rng.normal(); });
    } else if (/ln_.*weight/.test(name)) data.fill(1);
    parameters[name] = {data, grad: null, trainable: true, group: group_of(name),
      part: part_of(name)};
  }
  const model = {config, parameters, output_tokens: task.output_tokens, cuts: []};
  if (trunk.kind === "turned")
    turn_keys(parameters["trunk.h.0.attn.c_attn.weight"].data, trunk.angle);
  if (trunk.start && trunk.start !== "drawn") start_input(model, trunk.start);
  return model;
}

// Rows that are orthogonal and of length gain, by Gram and Schmidt; no more rows than columns.
function orthogonal(data, rng, gain) {
  const [n, C] = data.shape, row = i => data.subarray(i * C, (i + 1) * C);
  data.forEach((_, i) => { data[i] = rng.normal(); });
  for (let i = 0; i < n; i++) {
    for (let j = 0; j < i; j++) {
      const overlap = dot(row(i), row(j)) / gain ** 2;
      row(i).forEach((v, c) => { row(i)[c] = v - overlap * row(j)[c]; });
    }
    const length = Math.sqrt(dot(row(i), row(i)));
    row(i).forEach((v, c) => { row(i)[c] = v * gain / length; });
  }
}

// Freeze the parts that are listed: "h.0.attn", or a whole group, "attn".  Adam forgets what it
// knew of a parameter that is frozen.
function freeze(model, frozen) {
  for (const p of Object.values(model.parameters)) {
    p.trainable = !frozen.includes(p.part) && !frozen.includes(p.group);
    if (!p.trainable) p.grad = p.m = p.v = p.t = null;
  }
}
