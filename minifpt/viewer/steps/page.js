const SHORT = {linear: "lin", layer_norm: "ln", attention: "attn", softmax: "soft", dropout: "drop",
  positions: "pos", last_tokens: "last", cross_entropy: "CE", log_sum_exp: "lse",
  embedding: "emb", unembedding: "unemb", gelu_exact: "gelu"};
const TYPES = {"<f4": Float32Array, "<f8": Float64Array, "<i4": Int32Array, "|u1": Uint8Array,
  "|b1": Uint8Array};
const TOLERANCE = 1e-6;
const LATE = ["last_tokens"];               // run back out of the strip's order
const WAITS = "The lower row of the strip runs from right to left, but last waits for the branch " +
  "that stands left of it.";
const state = {at: 0, all: false, example: 0, head: 0, open: new Set(), broken: null, asked: null, row: null,
  terms: [], entry: null, from: null};
let drawings = [];                          // what draws the matrices of this frame once more

// ------------------------------------------------------------------------ small helpers

function array(n) {
  const a = D.arrays[n];
  if (!a.values) a.values = bytes(a.data, TYPES[a.dtype]);
  return a;
}
function offset(a, index) {                 // a.first: of each axis, the first index that is kept
  let at = 0;
  for (let i = 0; i < index.length; i++) {
    const n = index[i] - a.first[i];
    if (n < 0 || n >= a.shown[i]) return -1;
    at = at * a.shown[i] + n;
  }
  return at;
}
// What a token is called, by its index along an axis of an array; without a name, its number.
const TOKENS = ["token", "query", "key", "position"];
function nameOf(a, axis, index) {
  if (!TOKENS.includes(a.axes[axis])) return String(index);
  const example = a.example ?? (a.axes[0] !== "example" ? null : a.shape.length > 2 ?
    state.example : a.shown[0] === 1 ? 0 : null);
  const names = D.names.length ? D.names : D.texts[example];
  const t = index + (a.axes[axis] === "position" ? 0 : D.tokens - a.shape[axis]);
  return names && names[t] !== undefined ? names[t] : String(index);
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
const kilo = n => n < 1000 ? `${n} B` : n < 1e6 ? `${(n / 1e3).toFixed(1)} kB` :
  `${(n / 1e6).toFixed(2)} MB`;
const shape = s => s.length ? s.join(" × ") : "one number";

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
frames.push({kind: "adam"});
const frameOf = {};
frames.forEach((f, n) => { frameOf[f.kind === "step" ? f.i : f.kind] = n; });
// The short path, which the arrows follow at first: the kinds of operation, once each.
const frame_of = (op, back, where) => frameOf[S.findIndex(s => s.op === op && s.back === back &&
  s.name.includes(where) && s.inside === null)];
const path = [0, frame_of("linear", false, "input"), frame_of("positions", false, ""),
  frame_of("layer_norm", false, "h.0"), frame_of("attention", false, "h.0"),
  frame_of("gelu", false, "h.0"), frame_of("linear", false, "output"), frameOf.loss,
  frame_of("linear", true, "output"), frame_of("attention", true, "h.0"),
  frame_of("layer_norm", true, "h.0.ln_1"), frameOf.adam].filter(n => n !== undefined);
const places = () => state.all ? frames.map((_, n) => n) : path;
// The frame after this one, or before it, on the way.
const beside = (direction, way = places()) => direction > 0 ? way.find(n => n > state.at) :
  way.filter(n => n < state.at).pop();
const step_to = (direction, way) => go(beside(direction, way) ?? state.at);
// What a step is called: blocks count from 1.
const WORDS = {input: "input layer", wpe: "positions", ln_1: "norm before attention",
  "attn.c_attn": "queries, keys and values", attn: "attention", "attn.c_proj": "attention, output",
  ln_2: "norm before feed-forward", "mlp.c_fc": "feed-forward, first layer",
  "mlp.act": "feed-forward, GELU", mlp: "feed-forward", "mlp.c_proj": "feed-forward, second layer",
  ln_f: "final norm", output: "output layer", cross_entropy: "loss", last_tokens: "last tokens"};
function words(step) {
  const [, number, name] = step.layer.match(/h\.(\d+)\.?(.*)/) ||
    [null, null, step.layer.replace(/^trunk\.?/, "")];
  const part = WORDS[name] || name || WORDS[step.op] || "", op = step.op.replace(/_/g, " ");
  return (step.inside === null && (WORDS[name] || !name) && part && !/dropout/.test(op) ?
    part : `${op}${part ? ` in ${part}` : ""}`) + (number ? ` of block ${Number(number) + 1}` : "") +
    (step.back ? ", backward" : "");
}
const checks = {};                          // backward step -> its rows of differences
D.differences.forEach((d, n) => (checks[d.step] = checks[d.step] || []).push({...d, n}));
const RELATIVE = "Relative error: |gradient − finite difference|, divided by the largest of " +
  "these two numbers and the root mean square of the whole right gradient. Up to 1e−6 is allowed.";
const errorOf = (v, d) => Math.abs(v - d.numerical) /
  Math.max(Math.abs(v), Math.abs(d.numerical), d.scale, 1e-300);
const fault = () => state.broken === null ? null : D.breaks[state.broken];
// Groups of the ribbon: blocks, and single operations between them.
const groups = [];
for (const i of forward) {
  const fold = S[i].fold, last = groups[groups.length - 1];
  if (last && last.fold === fold) last.steps.push(i);
  else groups.push({fold, steps: [i]});
}
const groupOf = i => groups.find(g => g.steps.includes(S[i].back && S[i].partner !== null ?
  S[i].partner : i));
const group_at = n => frames[n].kind === "step" ?
  `${S[frames[n].i].back}${groups.indexOf(groupOf(frames[n].i))}` : frames[n].kind;
const starts = frames.map((_, n) => n).filter(n => !n || group_at(n) !== group_at(n - 1));
function kindOf(step) {
  const own = step.back && step.partner !== null ? S[step.partner] : step;
  const parameters = own.in.filter(p => p.parameter);
  return parameters.some(p => p.trained) ? "trained" : parameters.length ? "frozen" : "plain";
}
const KINDS = {trained: "trained parameters", frozen: "frozen parameters", plain: "no parameters"};

// ------------------------------------------------------------------------ matrices

let printing = false;                       // on paper the page is light
const dark = () => DARK.matches && !printing;
const paint = name => getComputedStyle(document.documentElement).getPropertyValue(name);
function color(v, limit, positive) {
  if (!isFinite(v)) return dark() ? [80, 92, 100] : [203, 211, 216];
  const t = Math.max(-1, Math.min(1, limit ? v / limit : 0));
  if (!positive) return signed_color(t, dark());
  return mixed(zero_color(dark()), dark() ? [94, 208, 220] : [12, 84, 96], Math.sqrt(Math.max(0, t)));
}
function limits(values) {
  const sizes = Array.from(values, Math.abs).filter(isFinite).sort((a, b) => a - b);
  return sizes[Math.floor(0.985 * (sizes.length - 1))] || sizes[sizes.length - 1] || 1;
}
// Black or white, whichever has more contrast on a colour: always 4.58 : 1 or better.
function luminance(rgb) {
  const [r, g, b] = rgb.map(v => v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const inkOn = rgb => luminance(rgb) > 0.179 ? "#000" : "#fff";
const MONO = size => `${size}px ui-monospace, Menlo, Consolas, monospace`;

// part: {name, array, parameter?, trained?, formula?}; ask: the differences that belong to it;
// step: the operation, if a click asks where a number comes from; picked: what a click calls.
function matrix(part, tag = "", ask = null, step = null, picked = null) {
  const a = array(part.array), nd = a.shape.length;
  const drawn = i => Math.min(TOKENS.includes(a.axes[i]) ? 32 : 24, a.shown[i]);
  const rows = nd > 1 ? drawn(nd - 2) : 1, cols = nd ? drawn(nd - 1) : 1;
  const lead = a.axes.slice(0, Math.max(0, nd - 2)).map((axis, i) => a.first[i] +
    Math.min(a.shown[i] - 1, axis === "example" ? state.example :
      axis === "head" || axis === "token" ? state.head : 0));
  const isMap = part.name === "probabilities", positive = isMap || part.name === "one_hot" ||
    a.values.every(v => v >= 0);
  const limit = isMap ? 1 : limits(a.values);
  const at = (r, c) => nd > 1 ? [...lead, a.first[nd - 2] + r, a.first[nd - 1] + c] :
    nd ? [a.first[0] + c] : [];
  const rowName = r => nameOf(a, nd - 2, at(r, 0)[nd - 2]);
  const colName = c => nameOf(a, nd - 1, at(0, c)[nd - 1]);
  const texts = part.array === D.x && D.texts.length && TOKENS.includes(a.axes[nd - 1]) ?
    (r, c) => D.texts[at(r, c)[0]][at(r, c)[1]] : null;    // letters where the numbers are ids
  const ruler = document.createElement("canvas").getContext("2d");
  ruler.font = MONO(11);
  const widest = (n, name) => Math.max(...Array.from({length: n}, (_, i) =>
    ruler.measureText(name(i)).width));
  const room = Math.min(560, window.innerWidth - 40);
  const left = nd > 1 ? Math.ceil(Math.min(70, Math.max(17, widest(rows, rowName) + 7))) : 1;
  const space = (isMap ? room : Math.min(room, 334)) - left - 1;
  const cw = Math.min(64, Math.max(6, Math.floor(space / Math.max(1, cols))));
  const longest = cols ? widest(cols, colName) : 0, upright = nd && longest > cw - 2 &&
    TOKENS.includes(a.axes[nd - 1]);                      // long names of columns stand upright
  const top = upright ? Math.ceil(Math.min(70, longest + 6)) : 14;
  const ch = Math.max(5, Math.min(isMap ? 26 : rows > 5 ? 16 : 20,
    Math.floor((isMap ? 330 : 176) / Math.max(1, rows))));
  const asks = ask || picked || step;
  const canvas = el("canvas", {tabindex: 0, role: "grid", class: asks ? "ask" : null,
    "aria-rowcount": rows, "aria-colcount": cols, "data-key": `${tag} ${part.name}`});
  const id = `cell${matrix.count = (matrix.count || 0) + 1}`;
  // Small or large numbers stand in the cells without their power of ten.
  const power = limit > 0 && (limit < 0.1 || limit >= 1e4) && !Number.isInteger(limit) ?
    Math.floor(Math.log10(limit)) : 0;
  const chosen = a.axes[nd > 1 ? nd - 2 : 0] === "example" && !part.parameter ? state.example : -1;
  let cursor = null;
  const place = index => {                  // row and column of an entry, where it is in sight
    const [r, c] = nd > 1 ? [index[nd - 2] - a.first[nd - 2], index[nd - 1] - a.first[nd - 1]] :
      [0, (index[0] || 0) - (a.first[0] || 0)];
    return index.length === nd && r >= 0 && c >= 0 && r < rows && c < cols &&
      lead.every((v, i) => v === index[i]) ? [r, c] : null;
  };
  const chosenCell = () => picked ? place(state.entry) : step && state.asked &&
    state.asked.step === S.indexOf(step) && state.asked.name === part.name ?
    place(state.asked.at) : null;
  function draw() {
    const g = draw_on(canvas, left + cols * cw + 1, top + rows * ch + 1);
    g.textBaseline = "middle"; g.textAlign = "center"; g.fillStyle = paint("--soft");
    const every = upright ? Math.ceil(11 / cw) : Math.ceil((longest + 3) / cw);
    for (let c = 0; c < cols; c += every) {               // the names of columns and rows
      g.font = (nd === 1 && c === chosen ? "bold " : "") + MONO(11);
      g.save(); g.translate(left + (c + 0.5) * cw, upright ? top - 3 : 7);
      if (upright) { g.rotate(-Math.PI / 2); g.textAlign = "left"; }
      g.fillText(colName(c), 0, 0, upright ? top : every * cw); g.restore();
    }
    g.textAlign = "right";
    if (nd > 1) for (let r = 0; r < rows; r += Math.ceil(11 / ch)) {
      g.font = (r === chosen ? "bold " : "") + MONO(11);
      g.fillText(rowName(r), left - 4, top + (r + 0.5) * ch, left - 4);
    }
    for (let r = 0; r < rows; r++) for (let c = 0; c < cols; c++) {
      const v = valueAt(a, at(r, c)), rgb = color(v, limit, positive);
      g.fillStyle = `rgb(${rgb})`;
      g.fillRect(left + c * cw, top + r * ch, cw - (cw > 5), ch - (ch > 5));
      if (texts ? cw >= 8 : cw >= 32 && ch >= 12) {
        g.fillStyle = inkOn(rgb);
        g.font = MONO(cw > 44 ? 11.5 : 11); g.textAlign = "center";
        g.fillText(texts ? texts(r, c) : inCell(v, power, cw > 44 ? 3 : 2), left + (c + 0.5) * cw,
          top + 0.5 + (r + 0.5) * ch, cw);
      }
    }
    if (chosen >= 0 && a.shown[0] > 1) {      // the example that is looked at
      g.strokeStyle = paint("--ink"); g.lineWidth = 2;
      if (nd > 1) g.strokeRect(left, top + chosen * ch, cols * cw - 1, ch - 1);
      else g.strokeRect(left + chosen * cw, top, cw - 1, ch - 1);
    }
    g.strokeStyle = paint("--ink"); g.lineWidth = 1.5; g.setLineDash([3, 2]);
    for (const d of ask || []) {            // the entries that have a difference
      const cell = place(d.at);
      if (cell) g.strokeRect(left + cell[1] * cw + 0.5, top + cell[0] * ch + 0.5, cw - 2, ch - 2);
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
  const text = (r, c) => `${part.name}[${at(r, c).join(", ")}] = ${num(valueAt(a, at(r, c)), 7)}` +
    (nd > 1 && rowName(r) !== String(at(r, c)[nd - 2]) ? `, ${rowName(r)}` +
      (colName(c) !== String(at(r, c)[nd - 1]) ? ` → ${colName(c)}` : "") : "");
  function tell(r) {                        // a screen reader gets the row that is read
    const cells = Array.from({length: cols}, (_, c) => el("span", {role: "gridcell",
      id: `${id}-${c}`, "aria-colindex": c + 1, "aria-label": `${rowName(r)}, ${colName(c)}`},
    num(valueAt(a, at(r, c)), 5)));
    canvas.replaceChildren(el("div", {role: "row", "aria-rowindex": r + 1}, cells));
    if (cursor) canvas.setAttribute("aria-activedescendant", `${id}-${cursor[1]}`);
  }
  const where = e => {
    const box = canvas.getBoundingClientRect(), scale = box.width / (left + cols * cw + 1);
    const c = Math.floor(((e.clientX - box.left) / scale - left) / cw);
    const r = Math.floor(((e.clientY - box.top) / scale - top) / ch);
    return r >= 0 && r < rows && c >= 0 && c < cols ? [r, c] : null;
  };
  const pick = (r, c) => {
    const low = canvas.getBoundingClientRect().top + top + (r + 1) * ch + 8;
    tip();
    if (picked) picked(at(r, c));
    if (!step) return;
    state.asked = {step: S.indexOf(step), name: part.name, at: at(r, c), from: `${tag} ${part.name}`};
    answer();
    const box = document.querySelector(".asked");     // it must not lie on the cell
    if (box) window.scrollBy(0, Math.max(0, low - box.getBoundingClientRect().top));
  };
  canvas.addEventListener("mousemove", e => {
    const rc = where(e);
    if (rc) tip(text(...rc), e.clientX, e.clientY);
    else tip();
  });
  canvas.addEventListener("mouseleave", () => tip());
  canvas.addEventListener("mousedown", e => e.preventDefault());   // the arrows go on stepping
  canvas.addEventListener("click", e => {
    const rc = where(e);
    if (rc) pick(...rc);
  });
  canvas.addEventListener("keydown", e => {
    const move = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0],
      ArrowDown: [1, 0]}[e.key];
    if (move) {
      cursor = cursor ? [Math.max(0, Math.min(rows - 1, cursor[0] + move[0])),
        Math.max(0, Math.min(cols - 1, cursor[1] + move[1]))] : chosenCell() || [0, 0];
      const box = canvas.getBoundingClientRect();
      draw();
      tell(cursor[0]);
      tip(text(...cursor), box.left + left + cursor[1] * cw, box.top + top + cursor[0] * ch);
      say(text(...cursor));
    } else if ((e.key === "Enter" || e.key === " ") && cursor) pick(...cursor);
    else if (e.key === "Escape" && !state.asked) { cursor = null; draw(); tip(); canvas.blur(); }
    else return;
    e.preventDefault(); e.stopPropagation();
  });
  canvas.addEventListener("blur", () => { cursor = null; draw(); tip(); });
  const finite = a.values.filter(isFinite), extreme = pick => num(finite.length ?
    finite.reduce((x, y) => pick(x, y)) : NaN);
  canvas.setAttribute("aria-label", `${part.name}, ${shape(a.shape)}, values from ` +
    `${extreme(Math.min)} to ${extreme(Math.max)}; arrow keys read them` +
    (asks ? ", Enter shows where one comes from" : ""));
  draw();
  if (rows) tell(0);
  const title = (name, n) => name === "channel of the head" ? "channel" :
    name === "token" && n < D.tokens ? n === 1 ? "token (the last)" : `token (of the last ${n})` :
      name;
  const axis = (i, arrow, n) => `${title(a.axes[i], a.shape[i])} ` + arrow + (n < a.shape[i] ?
    ` (${a.first[i] ? "the last " : a.axes[i] === "position" ? "the first " : ""}${n} of ${a.shape[i]} shown)` : "");
  const names = (nd > 1 ? `${axis(nd - 2, "↓", rows)}, ${axis(nd - 1, "→", cols)}` :
    nd ? axis(0, "→", cols) : "");
  const scaled = power && cw >= 32 && ch >= 12 ? el("span", {class: "scaled"},
    `; unit 1e${power}`.replace("-", "−")) : "";
  const f = frames[state.at], is_right = fault() && (f.kind === "adam" || f.kind === "step" && S[f.i].back);
  return el("figure", {}, el("figcaption", {}, tag ? el("span", {class: `tag ${tag}`}, tag) : null,
    is_right ? el("span", {class: "tag right"}, "right step") : null,
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
