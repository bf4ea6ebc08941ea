// The next step of the model that is drawn, opened operation by operation: the data of the step
// page (steps.js), with the numbers of now. Nothing is cut, and a finite difference is computed
// when it is asked for.

const NAMES = {linear: ["x", "w", "b"], positions: ["x", "w"], layer_norm: ["x", "w", "b"],
  gelu: ["x"], attention: ["qkv"], residual: ["x", "branch"], last_tokens: ["x"],
  cross_entropy: ["logits"]};
const AXES = {3: ["example", "token", "channel"], 2: ["in", "out"], 1: ["channel"]};
const HEAD_AXES = ["example", "head", "token", "channel of the head"];
const MAP_AXES = ["example", "head", "query", "key"];
const shaped = (values, shape) => Object.assign(values, {shape});
const cells = shape => Array.from({length: shape.reduce((a, b) => a * b, 1)}, (_, i) => i);

// Run the step and note every operation: {op, layer, back, inputs, result}.
function record(engine, model, {x, y}) {
  const records = [], keep = back => (op, layer, inputs) => {
    const result = op(...inputs);
    records.push({op: op.name.replace("_backward", ""), layer, back, inputs, result});
    return result;
  };
  const [logits, cache] = engine.forward(model, x, keep(false));
  const loss = keep(false)(engine.cross_entropy, "", [logits, y]);
  const [dlogits] = keep(true)(engine.cross_entropy_backward, "", [loss[1]]);
  engine.backward(model, dlogits, cache, keep(true));
  return {records, loss: loss[0], accuracy: engine.accuracy(logits, y)};
}

// qkv (B, T, 3C) -> q, k or v (B, H, T, D), or y (B, T, C) with part 0 of one.
function split(values, H, part, parts = 3) {
  const [B, T, width] = values.shape, C = width / parts, D = C / H, shape = [B, H, T, D];
  return shaped(values.constructor.from(cells(shape), i => {
    const d = i % D, t = Math.floor(i / D) % T, h = Math.floor(i / D / T) % H;
    return values[(Math.floor(i / D / T / H) * T + t) * width + part * C + h * D + d];
  }), shape);
}

// All arrays and numbers that an operation's formulas name.
function operands({op, back, inputs, result}, ahead) {
  const [first, second] = back ? ahead.inputs : inputs, cache = (back ? ahead : {result}).result[1];
  const names = Object.fromEntries(NAMES[op].map((n, i) => [n, (back ? ahead : {inputs}).inputs[i]]));
  if (op === "attention") {
    const H = second, {probabilities} = cache;
    "qkv".split("").forEach((n, i) => { names[n] = split(first, H, i); });
    const [B, , T, D] = names.q.shape;
    Object.assign(names, {kept: probabilities, probabilities, scale: 1 / Math.sqrt(D)});
    if (back) {
      names.dy = split(inputs[0], H, 0, 1);
      const da = shaped(cells([B, H, T, T]).map(i => {
        const head = Math.floor(i / T / T), t = Math.floor(i / T) % T, s = i % T;
        let sum = 0;
        for (let d = 0; d < D; d++)
          sum += names.dy[(head * T + t) * D + d] * names.v[(head * T + s) * D + d];
        return sum;
      }), [B, H, T, T]);
      names.ds = E.softmax_backward(shaped(Float32Array.from(da), da.shape), {y: probabilities})[0];
    }
    return names;
  }
  if (back) names.dy = inputs[0];
  if (op === "residual" && back) names.dbranch = inputs[1];
  if (op === "last_tokens" && back) names.padded = result[0];
  if (op === "gelu" && back) names.slope = E.gelu_backward(shaped(
    names.dy.map(() => 1), names.dy.shape), cache)[0];
  if (op === "layer_norm") {
    const {xhat, rstd, w} = cache, C = w.length, rows = [...first.shape.slice(0, -1), 1];
    const mean = f => shaped(Float32Array.from(rstd, (_, n) => {
      let sum = 0;
      for (let c = 0; c < C; c++) sum += f(n * C + c, c) / C;
      return sum;
    }), rows);
    Object.assign(names, {xhat, rstd: shaped(rstd.subarray(), rows), mean_x: mean(i => first[i])});
    if (back) Object.assign(names, {mean_g: mean((i, c) => names.dy[i] * w[c]),
      mean_g_xhat: mean((i, c) => names.dy[i] * w[c] * xhat[i])});
  }
  if (op === "cross_entropy") {
    const {p, targets} = ahead ? ahead.result[1] : cache, [B, T, width] = first.shape;
    const V = p.shape[1], shape = width > V ? [B, T, width / V, V] : [B, T, V];
    Object.assign(names, {dy: 1, n: targets.length, p: shaped(p.subarray(), shape),
      one_hot: shaped(p.map((_, i) => i % V === targets[Math.floor(i / V)] ? 1 : 0), shape)});
  }
  return names;
}

// The data of the step page.
function live_data(engine, model, task, batch, settings) {
  const {records, loss, accuracy} = record(engine, model, batch), arrays = [], known = new Map();
  const parameters = new Map(Object.entries(model.parameters).map(([n, p]) => [p.data, [n, p]]));
  const add = (values, axes) => {
    const key = `${axes}${values.shape}`, numbers = known.get(values) || {};
    if (!(key in numbers)) {
      const {shape} = values, C = shape[shape.length - 1];
      numbers[key] = arrays.push({values, shape, shown: shape, first: shape.map(() => 0), axes,
        dtype: "<f4", norms: axes[axes.length - 2] === "token" && C > 1 ?
          Float32Array.from({length: values.length / C}, (_, r) => Math.sqrt(E.dot(
            values.subarray(r * C, (r + 1) * C), values.subarray(r * C, (r + 1) * C)))) : undefined,
      }) - 1;
      known.set(values, numbers);
    }
    return numbers[key];
  };
  const axes_of = (name, values) => /^(p|one_hot|d?logits)$/.test(name) ?
    ["example", "token", ...(values.shape.length === 4 ? ["choice"] : []), "class"] :
    values.shape.length === 4 ? /kept|probabilities|ds/.test(name) ? MAP_AXES : HEAD_AXES : /wpe/.test((parameters.get(values) || [""])[0]) || name === "dw" &&
      values.shape.length === 2 && values.position ? ["position", "channel"] :
    AXES[values.shape.length];
  const part = (name, values) => {
    if (typeof values === "number") return {name, text: num_text(values)};
    const [parameter, p] = parameters.get(values) || [];
    return {name, array: add(values, axes_of(name, values)), ...(parameter ? {parameter,
      trained: p.trainable} : {})};
  };
  const num_text = v => String(Number(v.toPrecision(7)));
  const spelled = (f, names) => Object.fromEntries(Object.entries(f).map(([k, text]) =>
    [k, text.replace(/~/g, names.p && names.p.shape.length === 4 ? "btu" : "bt")]));
  const formula = (f, names, extra = {}) => f && {...f = spelled(f, names), times: f.times ? names[f.times] : 1,
    refs: Object.fromEntries([...(f.put + f.plus).matchAll(/(\w+)\[\w*\]/g)].map(([, n]) =>
      [n, typeof names[n] === "number" ? {number: names[n]} : part(n, names[n]).array])), ...extra};
  const sources = [], ahead_of = r => records.find(a => !a.back && a.op === r.op && a.layer === r.layer);
  const steps = records.map(r => {
    const {op, back, inputs, result} = r, ahead = back ? ahead_of(r) : null, info = D.operations[op];
    const names = operands(r, ahead), heads = op === "attention";
    const partner = records.findIndex(o => o.back !== back && o.op === op && o.layer === r.layer);
    const source = 2 * Object.keys(D.operations).indexOf(op) + back;
    sources[source] = info.sources[Number(back)];
    const layer = r.layer.replace(/\.(residual_\d|act)$/, "").replace("last", "");
    const step = {name: `${layer}.${op}`.replace(/^\./, ""), layer, op, back, source, run: -1,
      fold: (r.layer.match(/^trunk\.h\.\d+/) || [null])[0], inside: null,
      partner: partner < 0 ? null : partner};
    const cached = heads ? ["q", "k", "v", "probabilities"] : {linear: ["x", "w"],
      layer_norm: ["xhat", "rstd", "w"], gelu: ["x"], cross_entropy: ["p", "one_hot"]}[op] || [];
    if (back) {
      const given = op === "cross_entropy" ? [] : ["dy", ...(op === "residual" ? ["dbranch"] : [])];
      const grads = op === "cross_entropy" ? {logits: names.p.shape.length === 3 ?
        result[0] : shaped(result[0].subarray(), names.p.shape)} :
        heads ? Object.fromEntries([...'qkv'].map((n, i) => [n, split(result[0], inputs[1].n_head, i)])) :
          op === "residual" ? {x: result[0]} : Object.fromEntries(NAMES[op].map((n, i) => [n, result[i]]));
      if (op === "positions" && grads.w) grads.w.position = true;
      return {...step, in: [...given.map(n => ({...part(n, names[n]), cached: false})),
        ...cached.map(n => ({...part(n, names[n]), cached: true}))],
      out: Object.entries(grads).filter(([, g]) => g).map(([n, g]) => {
        const [parameter] = parameters.get(names[n]) || [];
        return {...part(`d${n}`, g), ...(parameter ? {parameter, trained: true} : {}),
          formula: formula(info.back[n], names)};
      })};
    }
    const needed = partner < 0 ? [] : records[partner].result, N = E.rows(inputs[0]);
    const missing = op === "cross_entropy" || op === "residual" ? [] : NAMES[op].map((n, i) => {
      if (needed[i]) return null;
      const values = names[n], of = (parameters.get(values) || [null])[0];
      return {name: `d${n}`, why: of ? "frozen" : "nothing below learns", of, shape: values.shape,
        cost: op === "linear" ? N * (n === "b" ? values.length : names.w.length) :
          /norm|positions/.test(op) ? inputs[0].length : 0};
    }).filter(m => m && partner >= 0);
    const kept = cached.filter(n => !parameters.has(names[n]) && n !== "one_hot");
    return {...step, in: (heads ? ["q", "k", "v"] : NAMES[op]).map(n => part(n, names[n])), missing,
      middle: heads ? [part("probabilities", names.probabilities)] : [],
      out: [op === "cross_entropy" ? {name: "y", text: num_text(result[0])} :
        {...part("y", result[0]), formula: formula(info.forward, names,
          heads ? {split: names.q.shape[3]} : {})}],
      keeps: kept.map(n => ({name: n, text: `(${names[n].shape.join(", ")})`})),
      bytes: kept.reduce((sum, n) => sum + 4 * names[n].length, 0),
      form: op === "residual" ? "NoneType" : op.replace(/(^|_)(\w)/g, (_, __, c) => c.toUpperCase())};
  });
  const [B, n, k] = [batch.x.shape[0], task.output_tokens, batch.y.length / batch.x.shape[0]];
  const counts = {};
  for (const p of Object.values(model.parameters)) {
    const group = counts[p.group] = counts[p.group] || [0, 0];
    group[0] += p.data.length;
    group[1] += p.trainable ? p.data.length : 0;
  }
  const y = shaped(Int32Array.from(batch.y), k > n ? [B, n, k / n] : [B, n]);
  return {...settings, loss, accuracy, steps, sources, arrays, counts, tokens: task.tokens, batch: B,
    names: task.names, texts: [], images: null, runs: [], unseen: [], breaks: [],
    x: add(batch.x, AXES[3]), y: add(y, ["example", "token", "choice"].slice(0, y.shape.length)),
    adam: null, losses: [], differences: [], unchecked: "",
    difference: differences_of(engine, model, batch)};
}

// An entry of a parameter's gradient, computed again in float64, against (L(x + h) − L(x − h)) / 2h.
function differences_of(engine, model, {x, y}) {
  const double = engine.converted(model, Float64Array);
  const wide = {x: shaped(Float64Array.from(x), x.shape), y};
  engine.learn(double, wide);
  return ({parameter}, at) => {
    if (!parameter) return null;
    const {grad, data} = double.parameters[parameter];
    const index = at.reduce((sum, v, i) => sum * data.shape[i] + v, 0), value = grad[index];
    const numerical = engine.numerical_gradient(double, wide, parameter, index);
    const scale = Math.sqrt(E.dot(grad, grad) / grad.length);
    return {value, numerical, nudge: engine.NUDGE, scale, error: Math.abs(value - numerical) /
      Math.max(Math.abs(value), Math.abs(numerical), scale, 1e-7)};
  };
}

// ------------------------------------------------------------------------ the open operation

const stepper = by("stepper");
window.live_step = () => {
  const task = TASKS[S.task], rng = E.generator(S.seed, `step ${latest ? latest.step : 0}`);
  const {model, fault} = models[shown], size = Math.min(S.batch, 4);
  const batch = E.batch_of(task, [example, ...Array.from({length: size - 1}, () => task.draw(rng))]);
  const step = latest ? latest.step + 1 : 1, part = S.open || "input";
  const data = live_data(engine(fault), model, task, batch, {title: `One step: ${task.title}`,
    task: task.title, about: EXPLAIN[S.task], trunk: D.model, number: step, lr: S.rate,
    facts: `step ${count(step)}, on the bits of the picture${size > 1 ? ` and ${size - 1} more ` +
      `example${size > 2 ? "s" : ""}` : ""}` + (fault ? `; with the fault “${fault_of(fault).title}”: ` +
      "the source below is the right one" : "")});
  const own = data.steps.map((s, i) => [s, i]).filter(([s]) => !s.back &&
    E.part_of(`${s.layer}.weight`) === part);
  const main = own.find(([s]) => /attention|layer_norm|positions|linear/.test(s.op) &&
    (!part.endsWith("attn") || s.op === "attention"));
  return {...data, open: main ? main[1] : "home"};
};
function show_step() {
  if (!S.open) {
    if (stepper.open) stepper.close();
    by("frame").replaceWith(el("span", {id: "frame"}));
    return;
  }
  if (running) run(0);
  // A new frame each time: another document in the same one would be a step of Back.
  const frame = el("iframe", {id: "frame", title: "One step, operation by operation",
    srcdoc: D.stepper, onload: () => frame.focus()});
  by("frame").replaceWith(frame);
  if (!stepper.open) stepper.showModal();
}
stepper.addEventListener("close", () => { if (S.open) set({open: null}); });
by("close-step").onclick = window.close_step = () => set({open: null});
