"use strict";
const D = JSON.parse(document.getElementById("data").textContent);
const SHORT = {linear: "lin", layer_norm: "ln", attention: "attn", softmax: "soft", dropout: "drop",
  residual: "+", positions: "pos", last_tokens: "last", cross_entropy: "CE", log_sum_exp: "lse",
  embedding: "emb", unembedding: "unemb", gelu_exact: "gelu"};
const TYPES = {"<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array, "|u1": Uint8Array,
  "|b1": Uint8Array};
const TOLERANCE = 1e-6;
const LATE = ["residual", "last_tokens"];   // run back out of the strip's order
const WAITS = "The lower row of the strip runs from right to left, but + and last wait for the " +
  "branch that stands left of them.";
const state = {at: 0, example: 0, head: 0, open: new Set(), broken: null, asked: null, row: null,
  terms: [], entry: 0, entryAt: null, frame: 0, from: null};
let drawings = [];                          // what draws the matrices of this frame once more

// ------------------------------------------------------------------------ small helpers

function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== null && v !== false && v !== undefined) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.flat().filter(c => c !== null && c !== undefined && c !== false));
  return e;
}
function bytes(text, type) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return new type(out.buffer);
}
function array(n) {
  const a = D.arrays[n];
  if (!a.values) a.values = bytes(a.data, TYPES[a.dtype]);
  return a;
}
function offset(a, index) {
  let at = 0;
  for (let i = 0; i < index.length; i++) {
    if (index[i] >= a.shown[i]) return -1;
    at = at * a.shown[i] + index[i];
  }
  return at;
}
function valueAt(a, index) {
  const at = offset(a, index);
  return at < 0 ? null : a.values[at];
}
function num(v, digits = 4) {
  if (v === null || v === undefined) return "not in this file";
  if (v === 0) return "0";
  if (!isFinite(v)) return v > 0 ? "∞" : v < 0 ? "−∞" : "not a number";
  if (Number.isInteger(v) && Math.abs(v) < 1e6) return String(v).replace("-", "−");
  const size = Math.abs(v);
  const text = size >= 1e-3 && size < 1e5 ? v.toPrecision(digits) : v.toExponential(digits - 1);
  return text.replace("-", "−").replace("e−", "e−").replace("e-", "e−").replace("e+", "e");
}
const count = n => n.toLocaleString("en");
const kilo = n => n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` :
  `${(n / 1e6).toFixed(2)} MB`;
const shape = s => s.length ? s.join(" × ") : "one number";
const plural = (n, one) => `${count(n)} ${one}${n === 1 ? "" : "s"}`;

// ------------------------------------------------------------------------ what there is

const S = D.steps;
const forward = S.map((s, i) => i).filter(i => !S[i].back);
const firstBack = S.findIndex(s => s.back);
const frames = [{kind: "home"}];
S.forEach((s, i) => {
  if (i === firstBack) frames.push({kind: "loss"});
  frames.push({kind: "step", i});
});
if (firstBack < 0) frames.push({kind: "loss"});
const rest = forward.filter(i => S[i].partner === null && S[i].inside === null);
if (rest.length) frames.push({kind: "rest"});
frames.push({kind: "adam"});
if (D.film) frames.push({kind: "film"});
const frameOf = {};
frames.forEach((f, n) => { frameOf[f.kind === "step" ? f.i : f.kind] = n; });
const checks = {};                          // backward step -> its rows of differences
const floats = bytes(D.differences.floats, Float64Array);
D.breaks.forEach(b => { b.values = bytes(b.values, Float64Array); });
const unchecked = S.filter((s, i) => s.back && !D.differences.step.includes(i)).map(s => s.name);
const RELATIVE = "relative error: |gradient − finite difference|, divided by the largest of " +
  "these two numbers and the root mean square of the whole right gradient";
const errorOf = (v, d) => Math.max(0, Math.abs(v - d.numerical) - d.noise) /
  Math.max(Math.abs(v), Math.abs(d.numerical), d.scale, 1e-300);
D.differences.step.forEach((step, n) => {
  const [value, numerical, nudge, scale, noise] = floats.slice(5 * n, 5 * n + 5);
  const d = {n, step, name: D.differences.name[n], at: D.differences.at[n], value, numerical, nudge,
    scale, noise};
  d.error = errorOf(value, d);
  (checks[d.step] = checks[d.step] || []).push(d);
});
// Groups of the ribbon: blocks, and single operations between them.
const groups = [];
for (const i of forward) {
  const fold = S[i].fold, last = groups[groups.length - 1];
  if (last && fold !== null && last.fold === fold) last.steps.push(i);
  else if (last && fold === null && last.fold === null) last.steps.push(i);
  else groups.push({fold, steps: [i]});
}
const groupOf = i => groups.find(g => g.steps.includes(S[i].back && S[i].partner !== null ?
  S[i].partner : i));
function kindOf(step) {
  const own = step.back && step.partner !== null ? S[step.partner] : step;
  const parameters = own.in.filter(p => p.parameter);
  return parameters.some(p => p.trained) ? "trained" : parameters.length ? "frozen" : "plain";
}
const KINDS = {trained: "trained parameters", frozen: "frozen parameters", plain: "no parameters"};

// ------------------------------------------------------------------------ matrices

let printing = false;                       // on paper the page is light
const DARK = window.matchMedia("(prefers-color-scheme: dark)");
const dark = () => DARK.matches && !printing;
const paint = name => getComputedStyle(document.documentElement).getPropertyValue(name);
function color(v, limit, positive) {
  if (!isFinite(v)) return dark() ? [80, 92, 100] : [203, 211, 216];
  const t = Math.max(-1, Math.min(1, limit ? v / limit : 0));
  const mix = (a, b, s) => a.map((x, i) => Math.round(x + (b[i] - x) * s));
  const zero = dark() ? [34, 43, 49] : [250, 250, 248];
  if (positive) return mix(zero, dark() ? [94, 208, 220] : [12, 84, 96], Math.sqrt(Math.max(0, t)));
  const s = Math.pow(Math.abs(t), 0.7);
  return t < 0 ? mix(zero, dark() ? [96, 165, 245] : [28, 88, 160], s) :
    mix(zero, dark() ? [245, 150, 60] : [196, 84, 0], s);
}
function limits(values) {
  const sizes = Array.from(values, Math.abs).filter(isFinite).sort((a, b) => a - b);
  return sizes[Math.floor(0.985 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
}
function drawOn(canvas, w, h) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(w * ratio); canvas.height = Math.round(h * ratio);
  canvas.style.width = w + "px"; canvas.style.height = h + "px";
  const g = canvas.getContext("2d");
  g.scale(ratio, ratio);
  return g;
}
const BAR = 36;                             // the longest bar of a norm, in pixels
function norms(a) {                         // of each row of a matrix of tokens, where it has them
  if (typeof a.norms === "string") a.norms = bytes(a.norms, Float32Array);
  return a.norms || null;
}
// part: {name, array, parameter?, trained?, formula?}; ask: which differences belong to it.
function matrix(part, tag = "", ask = null, step = null, picked = null) {
  const a = array(part.array), nd = a.shape.length;
  const rows = nd > 1 ? a.shown[nd - 2] : 1, cols = nd ? a.shown[nd - 1] : 1;
  const lead = a.axes.slice(0, Math.max(0, nd - 2)).map((axis, i) => Math.min(a.shown[i] - 1,
    axis === "example" ? state.example : axis === "head" || axis === "token" ? state.head : 0));
  const positive = part.name === "probabilities" || part.name === "one_hot"
    || a.values.every(v => v >= 0);
  const limit = positive && (part.name === "probabilities") ? 1 : limits(a.values);
  const bars = norms(a), left = nd > 1 ? 17 : 1, top = 13, right = bars ? BAR + 3 : 1;
  const cw = Math.min(64, Math.max(6, Math.floor((344 - left - right) / cols)));
  const ch = Math.max(5, Math.min(rows > 5 ? 16 : 20, Math.floor(176 / rows)));
  const canvas = el("canvas", {tabindex: 0, role: "img", class: ask || picked ? "ask" : null,
    "data-key": picked ? `entry ${part.name}` : null});
  // Small or large numbers stand in the cells without their power of ten.
  const power = limit > 0 && (limit < 0.1 || limit >= 1e4) && !Number.isInteger(limit) ?
    Math.floor(Math.log10(limit)) : 0;
  const chosen = a.axes[nd > 1 ? nd - 2 : 0] === "example" && !part.parameter ? state.example : -1;
  const normAt = r => bars[offset({shown: a.shown.slice(0, -1)}, [...lead, r])];
  const longest = bars ? Math.max(...Array.from({length: rows}, (_, r) => normAt(r))) || 1 : 1;
  let cursor = null;
  const at = (r, c) => nd > 1 ? [...lead, r, c] : nd ? [c] : [];
  const place = index => {                  // row and column of an entry, where it is in sight
    const [r, c] = nd > 1 ? index.slice(-2) : [0, index[0] || 0];
    return index.length === nd && r < rows && c < cols && lead.every((v, i) => v === index[i]) ?
      [r, c] : null;
  };
  const chosenCell = () => picked ? place(state.entryAt) : step && state.asked &&
    state.asked.step === S.indexOf(step) && state.asked.name === part.name ?
    place(state.asked.at) : null;
  function draw() {
    const g = drawOn(canvas, left + cols * cw + right, top + rows * ch + 1);
    const font = size => { g.font = `${size}px ui-monospace, Menlo, Consolas, monospace`; };
    g.textBaseline = "middle"; g.fillStyle = paint("--soft"); font(9.5);     // the indices
    g.textAlign = "center";
    for (let c = 0; c < cols; c += cw < 14 ? 4 : cw < 18 ? 2 : 1) {
      font(nd === 1 && c === chosen ? "bold 11" : 9.5);
      g.fillText(String(c), left + (c + 0.5) * cw, 7);
    }
    g.textAlign = "right";
    if (nd > 1) for (let r = 0; r < rows; r += ch < 10 ? 4 : 1) {
      font(r === chosen ? "bold 11" : 9.5);
      g.fillText(String(r), left - 4, top + (r + 0.5) * ch);
    }
    for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) {
      const v = valueAt(a, at(r, c)), rgb = color(v, limit, positive);
      g.fillStyle = `rgb(${rgb})`;
      g.fillRect(left + c * cw, top + r * ch, cw - (cw > 5), ch - (ch > 5));
      if (cw >= 32 && ch >= 12) {
        g.fillStyle = 0.3 * rgb[0] + 0.6 * rgb[1] + 0.1 * rgb[2] < 140 ? "#fff" : "#1d2930";
        font(cw > 44 ? 11.5 : 10.5);
        g.textAlign = "center";
        g.fillText(inCell(v, power, cw > 44 ? 3 : 2), left + (c + 0.5) * cw,
          top + 0.5 + (r + 0.5) * ch);
      }
    }
    if (bars) for (let r = 0; r < rows; r++) {
      g.fillStyle = paint("--soft");
      g.fillRect(left + cols * cw + 3, top + r * ch + 2, (BAR - 2) * normAt(r) / longest,
        Math.max(1, ch - 5));
    }
    if (chosen >= 0 && a.shown[0] > 1) {      // the example that is looked at
      g.strokeStyle = paint("--ink"); g.lineWidth = 2;
      if (nd > 1) g.strokeRect(left, top + chosen * ch, cols * cw - 1, ch - 1);
      else g.strokeRect(left + chosen * cw, top, cw - 1, ch - 1);
    }
    if (ask) {                              // the entries that have a difference
      g.strokeStyle = paint("--ink"); g.lineWidth = 1.5; g.setLineDash([3, 2]);
      const here = ask.filter(d => offset(a, d.at) >= 0 &&
        d.at.slice(0, -2).every((v, i) => v === lead[i]));
      const span = k => here.map(d => k < 0 ? 0 : d.at[k]), r = span(nd - 2), c = span(nd - 1);
      if (here.length) g.strokeRect(left + 0.5 + Math.min(...c) * cw, top + Math.min(...r) * ch,
        (Math.max(...c) - Math.min(...c) + 1) * cw - 2,
        (Math.max(...r) - Math.min(...r) + 1) * ch - 2);
    }
    g.setLineDash([]);
    const ring = ([r, c], width) => [["--paper", width + 2], ["--ink", width]].forEach(
      ([name, wide]) => {
        g.strokeStyle = paint(name); g.lineWidth = wide;
        g.strokeRect(left + c * cw, top + r * ch, cw - 1, ch - 1);
      });
    if (tag === "in" || tag === "cache") for (const t of state.terms)   // what the sum is made of
      if (t.name === part.name && place(t.at)) ring(place(t.at), 1.5);
    const marked = cursor || chosenCell();
    if (marked) ring(marked, 2.5);
  }
  drawings.push(draw);
  const text = (r, c) => `${part.name}[${at(r, c).join(", ")}] = ${num(valueAt(a, at(r, c)), 7)}`;
  const where = e => {
    const box = canvas.getBoundingClientRect(), scale = box.width / (left + cols * cw + right);
    const c = Math.floor(((e.clientX - box.left) / scale - left) / cw);
    const r = Math.floor((e.clientY - box.top - top) / ch);
    return r >= 0 && r < rows && c >= 0 && (c < cols || bars) ? [r, c] : null;
  };
  const pick = (r, c) => {
    const low = canvas.getBoundingClientRect().top + top + (r + 1) * ch + 8;
    tip();
    if (picked) picked(offset(a, at(r, c)), at(r, c));
    if (step) state.asked = {step: S.indexOf(step), name: part.name, at: at(r, c)};
    if (step) answer();
    const box = document.querySelector(".asked");     // it must not lie on the cell
    if (box) window.scrollBy(0, Math.max(0, low - box.getBoundingClientRect().top));
  };
  canvas.addEventListener("mousemove", e => {
    const rc = where(e);
    if (rc && rc[1] >= cols) tip(`norm of row ${rc[0]}, over all ${a.shape[nd - 1]} columns: ` +
      num(normAt(rc[0])), e.clientX, e.clientY);
    else if (rc) tip(text(...rc), e.clientX, e.clientY);
    else tip();
  });
  canvas.addEventListener("mouseleave", () => tip());
  canvas.addEventListener("mousedown", e => e.preventDefault());   // the arrows go on stepping
  canvas.addEventListener("click", e => { const rc = where(e);
    if (rc && rc[1] < cols) pick(...rc); });
  canvas.addEventListener("keydown", e => {
    const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0],
      ArrowDown: [1, 0]}[e.key];
    if (move) {
      cursor = cursor ? [Math.max(0, Math.min(rows - 1, cursor[0] + move[0])),
        Math.max(0, Math.min(cols - 1, cursor[1] + move[1]))] : chosenCell() || [0, 0];
      const box = canvas.getBoundingClientRect();
      draw();
      tip(text(...cursor), box.left + left + cursor[1] * cw, box.top + top + cursor[0] * ch);
      say(text(...cursor));
    } else if ((e.key === "Enter" || e.key === " ") && cursor) pick(...cursor);
    else if (e.key === "Escape") { cursor = null; draw(); tip(); canvas.blur(); }
    else return;
    e.preventDefault(); e.stopPropagation();
  });
  canvas.addEventListener("blur", () => { cursor = null; draw(); tip(); });
  const finite = a.values.filter(isFinite), extreme = pick => num(finite.length ?
    finite.reduce((x, y) => pick(x, y)) : NaN);
  canvas.setAttribute("aria-label", `${part.name}, ${shape(a.shape)}, values from ` +
    `${extreme(Math.min)} to ${extreme(Math.max)}; arrow keys read them` +
    (step || picked ? ", Enter shows where one comes from" : ""));
  draw();
  const title = (name, n) => name === "channel of the head" ? "channel" :
    name === "token" && n < D.tokens ? `token (of the last ${n})` : name;
  const axis = (i, arrow) => `${title(a.axes[i], a.shape[i])} ` +
    arrow + (a.shown[i] < a.shape[i] ? ` (${a.shown[i]} of ${a.shape[i]} shown)` : "");
  const names = (nd > 1 ? `${axis(nd - 2, "↓")}, ${axis(nd - 1, "→")}` :
    nd ? axis(0, "→") : "") + (bars ? ", bars: row norm" : "");
  const scaled = power && cw >= 32 && ch >= 12 ? el("span", {class: "scaled"},
    `; unit 1e${power}`.replace("-", "−")) : "";
  return el("figure", {}, el("figcaption", {}, tag ? el("span", {class: `tag ${tag}`}, tag) : null,
    el("b", {}, part.name), ` ${shape(a.shape)} `,
    part.parameter ? el("span", {class: part.trained ? "p" : "f"},
      `${part.trained ? "● " : "▨ "}${part.parameter}, ${part.trained ? "trained" : "frozen"}`)
      : null, el("br"), names, scaled, part.note ? `; ${part.note}` : ""), canvas);
}
function inCell(v, power, digits) {
  if (!isFinite(v)) return num(v);
  const x = v / 10 ** power, size = Math.abs(x);
  if (v && size < 0.5 / 10 ** digits) return "≈0";
  return Number.isInteger(v) ? String(v).replace("-", "−") : x.toFixed(size >= 100 ? 0 :
    size >= 10 ? 1 : digits).replace(/^-(0\.?0*)$/, "$1").replace("-", "−");
}

function tip(text, x, y) {
  const t = document.getElementById("tip");
  t.hidden = !text;
  if (!text) return;
  t.textContent = text;
  t.style.left = Math.min(x + 14, window.innerWidth - t.offsetWidth - 8) + "px";
  t.style.top = Math.max(4, y - 30) + "px";
}
function say(text) { document.getElementById("said").textContent = text; }

function chooser() {
  const f = frames[state.at];
  const parts = f.kind === "step" ? [...S[f.i].in, ...S[f.i].out, ...(S[f.i].middle || [])] :
    f.kind === "home" ? [{array: D.x}] : f.kind === "loss" && lossParts() ? [lossParts().p] : [];
  let examples = 0, heads = 0, what = "Head", total = 0;
  for (const p of parts) if (p.array !== undefined) {
    const a = array(p.array);
    a.axes.forEach((axis, i) => {
      if (axis === "example" && a.shape.length - i > 1) {
        examples = Math.max(examples, a.shown[i]); total = Math.max(total, a.shape[i]);
      }
      if (i === 1 && a.shape.length === 4 && f.kind === "step") {
        heads = Math.max(heads, a.shown[i]); what = axis === "head" ? "Head" : "Token";
      }
    });
  }
  const buttons = (n, key, label) => n > 1 ? el("span", {role: "group", "aria-label": label},
    `${label} `, Array.from({length: n}, (_, i) => el("button", {
      "aria-pressed": String(state[key] === i), "data-key": key + i,
      onclick: () => { state[key] = i; render(); }}, String(i)))) : null;
  state.example = Math.min(state.example, Math.max(0, examples - 1));
  const all = [buttons(examples, "example", "Example"), examples && total > examples ?
    `${examples} of ${total} examples are in this file` : null, buttons(heads, "head", what)];
  return all.some(Boolean) ? el("div", {class: "choose"}, all) : null;
}

// ------------------------------------------------------------------------ the ribbon

function statusOf(i) {
  if (state.broken === null || !S[i].back) return "";
  const b = D.breaks[state.broken];
  if (b.first === i) return "first";
  return b.wrong[i] !== undefined ? "wrong" : checks[i] ? "right" : "";
}
function cell(i, extra = "") {
  const s = S[i], kind = kindOf(s), n = frameOf[i], status = statusOf(i);
  const when = n === state.at ? "now" : n < state.at ? "done" : "todo";
  const words = {first: "the first wrong gradient", wrong: "wrong gradient",
    right: "gradient agrees"}[status];
  return el("button", {
    class: `cell ${kind} ${when} ${status} ${s.inside !== null ? "inner" : ""} ${extra}`,
    tabindex: n === state.at ? 0 : -1, "data-step": i, title: `${s.name}${s.back ?
      ", backward" : ""}${s.name.endsWith(s.op) ? "" : ` (${s.op})`}: ${KINDS[kind]}${words ? "; " +
        words : ""}`,
    "aria-label": `${s.name}${s.back ? " backward" : ""}, ${KINDS[kind]}${words ? ", " +
      words : ""}`,
    "aria-current": n === state.at ? "step" : null, onclick: () => go(n)},
  el("span", {}, status === "first" ? "✗" : SHORT[s.op] || s.op));
}
function ribbon() {
  const nav = document.getElementById("ribbon"), now = frames[state.at];
  const here = now.kind === "step" ? groupOf(now.i) : null;
  const end = (top, n, title, low, m, lowTitle) => el("div", {class: "group end"},
    el("span", {class: "name"}, ""), el("div", {class: "column"},
      el("button", {class: `cell ${state.at === n ? "now" : "done"}`, title,
        tabindex: state.at === n ? 0 : -1, onclick: () => go(n)}, top),
      low === null ? null : el("button", {class: `cell trained ${state.at === m ? "now" :
        state.at > m ? "done" : "todo"}`, title: lowTitle, tabindex: state.at === m ? 0 : -1,
      onclick: () => go(m)}, low)));
  const parts = [end("start →", 0, "What goes in", "← Adam", frameOf.adam, "Adam: the update")];
  for (const g of groups) {
    const back = g.steps.map(i => S[i].partner).filter(i => i !== null);
    const open = g.fold === null || g === here || state.open.has(g.fold);
    const label = g.fold === null ? "" : `block ${g.fold.match(/\d+$/)[0]}`;
    if (!open) {
      const span = (list, arrow) => {
        const ns = list.map(i => frameOf[i]);
        const bad = list.find(i => statusOf(i) === "first");
        const wrong = list.filter(i => statusOf(i) === "wrong").length;
        return el("button", {class: `cell code ${Math.min(...ns) > state.at ? "todo" : "done"} ` +
          (bad !== undefined ? "first" : wrong ? "wrong" : ""), tabindex: -1,
        title: `${g.fold}: ${list.length} operations${arrow === "←" ? ", backward" : ""}` +
          (wrong || bad !== undefined ? `, ${wrong + (bad !== undefined)} wrong` : ""),
        style: `--code:${barcode(list)}`,
        onclick: () => go(Math.min(...ns))}, el("span", {},
          bad !== undefined ? `✗ ${wrong + 1}` : wrong ? `× ${wrong}` :
            `${list.length} ${arrow}`));
      };
      parts.push(el("div", {class: "group folded"}, el("button", {class: "name", title: "Unfold",
        "data-key": g.fold, onclick: () => { state.open.add(g.fold); render(); }}, `▸ ${label}`),
      el("div", {class: "column"}, span(g.steps, "→"), back.length ? span(back, "←") :
        el("div", {class: "cell none", title: "Nothing runs back here"}, "–"))));
      continue;
    }
    const columns = g.steps.map(i => el("div", {class: "column"}, cell(i),
      S[i].partner !== null ? cell(S[i].partner) : el("div", {class: "cell none",
        title: "Nothing runs back here: nothing below learns"}, "–")));
    parts.push(el("div", {class: "group", style: `flex-grow:${g.steps.length};flex-basis:` +
      `${g.steps.length * 31}px;max-width:${g.steps.length * 98}px`}, g.fold === null ? el("span",
        {class: "name"}) : el("button", {
      class: "name", title: "Fold", "data-key": g.fold, onclick: () => {
        state.open.delete(g.fold); if (g === here) go(frameOf[g.steps[0]] - 1); else render();
      }}, `▾ ${label}`), el("div", {class: "columns"}, columns)));
  }
  const n = frameOf.loss;
  const last = el("div", {class: "last"});            // in sight however long the strip is
  parts.push(last);
  last.append(el("div", {class: "group end"}, el("span", {class: "name"}, ""),
    el("button", {class: `cell turn ${state.at === n ? "now" : state.at > n ? "done" : "todo"}`,
      title: "The loss, where it turns round", tabindex: state.at === n ? 0 : -1,
      onclick: () => go(n)}, "loss")));
  if (D.film) last.append(el("div", {class: "group end"}, el("span", {class: "name"}, ""),
    el("button", {class: `cell turn ${state.at === frameOf.film ? "now" : "todo"}`,
      title: "Training as a film", tabindex: state.at === frameOf.film ? 0 : -1,
      onclick: () => go(frameOf.film)}, "film")));
  nav.replaceChildren(...parts);
  nav.classList.toggle("over", nav.scrollWidth > nav.clientWidth + 1);
  const current = nav.querySelector(".now");
  if (current && !current.closest(".last")) {
    const box = current.getBoundingClientRect();
    if (box.left < 0 || box.right > window.innerWidth - 120)
      nav.scrollLeft += box.left - window.innerWidth / 2;
  }
}

function barcode(list) {                    // a folded block: a stripe for each operation
  const order = S[list[0]].back ? [...list].sort((a, b) => b - a) : list;
  const stops = order.map((i, n) => {
    const c = {trained: "var(--trained)", frozen: "var(--stripe)",
      plain: "var(--paper)"}[kindOf(S[i])];
    return `${c} ${100 * n / order.length}% ${100 * (n + 1) / order.length}%`;
  });
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

// ------------------------------------------------------------------------ breaking it

function breaks() {
  const box = document.getElementById("breaks");
  if (!D.breaks.length) {
    box.replaceChildren(el("p", {}, "Differences and wrong backward passes are left out: " +
      `${D.unchecked}.`));
    return;
  }
  const parts = [el("b", {id: "bt"}, "Break it:")];
  D.breaks.forEach((b, n) => parts.push(el("button", {role: "switch", id: `break${n}`,
    "aria-checked": String(state.broken === n), title: `${b.op}_backward: ${b.instead}`,
    onclick: () => toggle(n)}, b.title)));
  const b = state.broken === null ? null : D.breaks[state.broken];
  if (b) {
    const wrong = Object.keys(b.wrong).length, checked = Object.keys(checks).length;
    parts.push(el("p", {"aria-live": "polite"}, "The fault: ", el("b", {}, b.title),
      ` in ${b.op}_backward. ${b.why}`, el("br"), b.first === null ?
      `No gradient changes here: ${S.some(s => s.back && s.op === b.op) ?
        "this step does not meet the fault" : `no ${b.op} runs back in it`}.` :
      ["First red: ", el("b", {class: "no"},
        `✗ ${S[b.first].name}, backward`), `, relative error ${num(b.wrong[b.first], 2)} ` +
        `where 1e−6 is allowed. ${wrong} of ${checked} checked backward operations give a ` +
        "wrong gradient: they run the faulty line, or receive a wrong gradient. " +
        `${unchecked.length ? `Not checked: ${unchecked.length > 3 ?
          `${unchecked.length} operations` : unchecked.join(", ")}.` : ""}`,
      state.from !== null && state.from !== state.at ? el("button", {"data-key": "from",
        onclick: () => go(state.from)}, "← back to where you were") : null]));
  }
  box.replaceChildren(...parts);
}
function toggle(n) {
  if (state.broken === null) state.from = state.at;
  state.broken = state.broken === n ? null : n;
  const b = state.broken === null ? null : D.breaks[n];
  if (b && b.first !== null) { go(frameOf[b.first]); } else render();
  document.getElementById(`break${n}`).focus();
}
