// ------------------------------------------------------------------------ the other frames

const block_name = fold => `block ${Number(fold.match(/\d+$/)[0]) + 1}`;
function digits() {                         // the pictures that go in, where the task has them
  if (!D.images) return null;
  const [n, h, w, colors = 1] = D.images.shape, values = bytes(D.images.data, Uint8Array);
  return el("div", {class: "digits"}, Array.from({length: Math.min(n, array(D.x).shown[0])}, (_, i) => {
    const canvas = el("canvas", {width: w, height: h, role: "img",
      "aria-label": `the picture of example ${i}`, class: i === state.example ? "chosen" : null});
    const g = canvas.getContext("2d"), image = g.createImageData(w, h);
    for (let k = 0; k < h * w; k++) for (let c = 0; c < 4; c++)
      image.data[4 * k + c] = c === 3 ? 255 : values[(i * h * w + k) * colors + (colors > 1 ? c : 0)];
    g.putImageData(image, 0, 0);
    return canvas;
  }));
}
function homeFrame() {
  const total = Object.values(D.counts).reduce((t, [n]) => t + n, 0);
  const trained = Object.values(D.counts).reduce((t, [, n]) => t + n, 0);
  const most = Math.max(...Object.values(D.counts).map(([n]) => n));
  const swatch = (kind, name, text) => el("span", {}, el("span", {class: `cell ${kind}`},
    el("span", {}, name)), text);
  return [head("What goes in, and what is to come out"), el("p", {class: "lead"}, "One training step of a " +
    "transformer: along the upper row of boxes numbers run to the ", el("b", {}, "loss"), ", which says how wrong " +
    "the answers are, and along the lower row back, where each box gets its ", el("b", {}, "gradient"), ", which " +
    "says how its numbers should move. Pink boxes hold parameters, numbers that are trained, grey ones frozen " +
    "parameters, white ones none; pale ones are not on the short path. Press ",
  el("button", {class: "press", onclick: () => step_to(1), "data-key": "press"}, "→"), ` to follow it, on a short path of ${
    path.length} screens or through all ${S.length} operations.`),
  el("div", {class: "legend"}, swatch("trained", "ln", "trained parameters"),
    swatch("frozen", "lin", "frozen parameters"), swatch("plain", "gelu", "no parameters")),
  el("div", {class: "two"}, el("div", {}, el("details", {open: true}, el("summary", {}, "Words on this page"),
    el("p", {class: "texts"},
      "On the strip above: lin linear, ln layer norm, attn attention, soft softmax, drop dropout, " +
      "pos positions, + what a part computed is added to what went into it, last keeps only the " +
      "last tokens, where the answers are, CE cross entropy, lse log of the sum of exponentials (within CE). " + WAITS),
    el("p", {class: "texts"}, "The trunk is the transformer between the input and the output " +
      "layer. e, in the cache of lse, is exp(x − max(x)). The step runs in float32, about 7 digits; " +
      "the gradient checks in float64, about 16.")),
    D.about ? el("p", {}, `${D.task}: ${D.about}`) : null,
    el("p", {}, el("span", {class: "big"}, count(trained)), ` of ${count(total)} parameters are ` +
      `trained.${trained < total ? " For the others no gradient is computed at all." : ""}`),
    el("table", {}, Object.entries(D.counts).map(([g, [n, t]]) => el("tr", {}, el("td", {}, g),
      el("td", {class: "n"}, count(n)), el("td", {}, el("span", {class: `bar ${t ? "t" : "f"}`,
        style: `width:${Math.max(1, 150 * n / most)}px`})), el("td", {}, t ?
        "● trained" : "▨ frozen")))),
    D.counts.pos ? el("p", {class: "texts"}, `pos counts the ${D.tokens} positions that are used.`) : null,
    D.unseen.length ? el("p", {}, `The trunk's own code reads ${D.unseen.join(", ")}: what it ` +
      "computes is not among these operations.") : null,
    el("p", {class: "texts"}, "This page runs the textbook operations, whose source " +
      `it shows. Training itself runs faster versions of them: with those the loss is ${
        num(D.fast, 9)}, here it is ${num(D.loss, 9)}.`)),
  el("div", {}, chooser(), digits(), el("div", {class: "arrays"}, matrix({name: "x", array: D.x}),
    matrix({name: "y", array: D.y})), D.names.length && D.tokens <= 64 ? el("p", {class: "texts"},
    `The tokens in order: ${D.names.join(" ")}.${readAt() ? ` The answers y are read at the last ${
      D.tokens - readAt() === 1 ? "one" : D.tokens - readAt()}.` : ""}`) : null,
  D.texts.length ? el("p", {class: "texts wrap"}, `Example ${state.example} as the task writes it: ` +
    (D.texts[state.example] || []).join(D.texts[0].every(t => t.length === 1) ? "" : " ")) : null,
  D.x === D.y ? null : el("p", {class: "texts"}, "The frame marks the example that is chosen.")))];
}
const KEYS = [["→ ←", "the next operation, the one before"],
  ["↓ ↑", "the next block, the one before"], ["L", "the loss"], ["Home", "the start"],
  ["A", "Adam, the end of the step"], ["1 … 5", "break the backward pass; once more mends it"],
  ["Tab", "into the matrices: there the arrows read numbers, and Enter shows where one comes " +
    "from; Escape closes the answer, then leaves the matrix"]];

function lossParts() {
  const s = S.find(s => s.back && s.op === "cross_entropy");
  if (!s || !s.out[0].formula) return null;
  const f = s.out[0].formula;
  return {p: {name: "p", array: f.refs.p}, hot: f.refs.one_hot, n: f.refs.n.number,
    d: s.out[0].array};
}
function readAt() {                         // the first token of which an answer is read; 0: of all
  const l = lossParts(), p = l && array(l.p.array);
  return p && p.shape.length === 3 && S.some(s => s.op === "last_tokens") ?
    D.tokens - p.shape[1] : 0;
}
function lossFrame() {
  const l = lossParts(), top = head("The loss");
  const intro = [el("p", {}, el("span", {class: "big"}, num(D.loss, 6)),
    " nats (with the natural logarithm)"),
    el("p", {}, `The accuracy is ${(100 * D.accuracy).toFixed(1)} %.`)];
  if (!l) return [top, el("div", {class: "two"}, el("div", {}, intro), stack())];
  const p = array(l.p.array), hot = array(l.hot), d = array(l.d), nd = p.shape.length;
  const rows = [];
  const per = p.shown.slice(1).reduce((a, b) => a * b, 1), V = p.shown[nd - 1];
  const lead = p.axes.slice(1, -1);         // where the answers stand among the tokens
  const named = lead[0] === "token" ? nameOf(p, 1, p.first[1]) : "";
  const from = state.example * per, most = Math.min(per, 40);
  for (let k = 0; k < most; k++) {
    const at = from + k, v = p.values[at], h = hot.values[at], diff = v - h;
    const token = Math.floor(k / V) + (lead.length === 1 ? p.first[1] : 0);
    const w = 50 * Math.abs(diff);
    const label = !named || lead.length > 1 ? String(token) : nameOf(p, 1, token);
    rows.push(el("tr", {class: k % V === 0 ? "new" : ""}, el("td", {}, k % V === 0 ?
      label : ""), el("td", {class: "mono", style: "white-space:nowrap"},
      `${k % V}${h ? " ◂ right" : ""}`),
    el("td", {class: "roomy"}, el("div", {class: `pr ${h ? "hot" : ""}`},
      el("i", {style: `width:${100 * v}%`}))),
    el("td", {class: "n"}, num(v, 4)), el("td", {class: "n roomy"}, String(h)),
    el("td", {}, el("div", {class: "pm"}, el("i", {style: `left:${diff < 0 ? 50 - w : 50}%;` +
      `width:${w}%;background:var(${diff < 0 ? "--below" : "--above"})`}))),
    el("td", {class: "n"}, num(diff, 4)), el("td", {class: "n"}, num(d.values[at], 4))));
  }
  return [top, el("div", {class: "three"}, el("div", {}, intro,
    el("p", {}, "The loss is the mean of −log p, p the probability of the right answer. Its " +
      "gradient says how each score should change: the probabilities, less 1 where the answer " +
      `is, divided by the number of answers, here ${count(l.n)}.`),
    el("p", {class: "doc"}, el("span", {class: "formula"},
      "dlogits = (softmax(logits) − one_hot(targets)) / n")),
    el("p", {}, "Orange: push this score down. Blue: push it up. Where the model is sure and " +
      "right nothing is left to learn.")),
  el("div", {class: "middle wide"}, chooser(), el("table", {}, el("tr", {}, el("th", {},
    lead.length > 1 ? "answer" : "token"), el("th", {}, "class"),
  el("th", {class: "roomy"}, "probability"),
  el("th", {class: "n"}, "p"), el("th", {class: "n roomy"}, "one-hot"),
  el("th"), el("th", {class: "n"}, "p − one-hot"), el("th", {class: "n"}, "dlogits")), rows),
    most < per ? el("p", {class: "texts"}, `${most} of ${per} rows.`) : null), stack())];
}

// ------------------------------------------------------------------------ moving about

function render() {
  const f = frames[state.at], active = document.activeElement;
  const focus = active.dataset.key ? `[data-key="${active.dataset.key}"]` :
    active.closest("#ribbon") ? "#ribbon .now" : null;  // what had the keyboard has it again
  tip();
  drawings = []; state.terms = [];
  ribbon(); breaks();
  const content = {home: homeFrame, loss: lossFrame, adam: adamFrame,
    step: () => stepFrame(S[f.i])}[f.kind]();
  document.getElementById("frame").replaceChildren(...content.filter(Boolean));
  if (state.asked && f.kind === "step" && state.asked.step === f.i) answer();
  const again = focus && document.querySelector(focus);
  if (again) again.focus({preventScroll: true});
}
function go(n) {
  n = Math.max(0, Math.min(frames.length - 1, n));
  if (n !== state.at) state.asked = null;
  const far = Math.abs(n - state.at) > 1;
  state.at = n;
  render();
  if (far) window.scrollTo(0, 0);           // a leap starts at the top, a step stays where it is
  say(document.querySelector("#frame h2").textContent);
  if (has_address && address_of(n) !== location.hash) location.hash = address_of(n);
}
// Each screen has an address: "#trunk.h.0.attn.attention", its way back with "/back".
const has_address = location.protocol !== "about:";
function address_of(n) {
  const f = frames[n];
  if (f.kind !== "step") return n ? `#${f.kind}` : "#start";
  const {name, back} = S[f.i], same = S.filter(s => s.name === name && s.back === back);
  return encodeURI(`#${name}${back ? "/back" : ""}${same.length > 1 ? `/${same.indexOf(S[f.i]) + 1}` : ""}`);
}
function visit() {
  const n = frames.findIndex((_, i) => address_of(i) === (location.hash || "#start"));
  const lost = n < 0 && location.hash.length > 1;
  Object.assign(document.getElementById("notice"), {hidden: !lost, textContent: lost ?
    `There is no screen “${location.hash.slice(1, 60)}” in this step.` : ""});
  if (n >= 0 && n !== state.at) go(n);
}
addEventListener("hashchange", visit);
document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.target.matches("input, .list, #stack ol") && /^(Arrow|Page)/.test(e.key)) return;
  const act = {ArrowRight: () => step_to(1), ArrowLeft: () => step_to(-1),
    ArrowDown: () => step_to(1, starts), ArrowUp: () => step_to(-1, starts), Home: () => go(0),
    Escape: () => state.asked && close(), l: () => go(frameOf.loss),
    a: () => go(frameOf.adam), End: () => go(frames.length - 1)}[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  const n = "12345".indexOf(e.key);
  if (act) act(); else if (n >= 0 && n < D.breaks.length) toggle(n); else return;
  e.preventDefault();
});
document.getElementById("title").textContent = D.title;
document.getElementById("facts").textContent = `${D.trunk ? D.trunk + ", " : ""}step 1, ` +
  `${plural(D.batch, "example")} of ${plural(D.tokens, "token")}`;
document.getElementById("keys").append(...KEYS.map(([k, t]) => el("span", {},
  ...k.split(" ").map(x => el("kbd", {}, x)), ` ${t}`)), el("span", {class: "note"},
  "Cells show rounded numbers; ≈0 is small but not 0. ", el("i", {class: "screen"},
    `${window.matchMedia("(hover: none)").matches ? "Tap" : "Point at"} a cell to read it in ` +
    "full. "), "A large array is cut, and says so."));
DARK.addEventListener("change", render);
for (const [event, on] of [["beforeprint", true], ["afterprint", false]])
  window.addEventListener(event, () => { printing = on; render(); });
render();
if (has_address) visit();
