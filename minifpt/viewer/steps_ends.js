// ------------------------------------------------------------------------ the other frames

function homeFrame() {
  const total = Object.values(D.counts).reduce((t, [n]) => t + n, 0);
  const trained = Object.values(D.counts).reduce((t, [, n]) => t + n, 0);
  const swatch = (kind, name, text) => el("span", {}, el("span", {class: `cell ${kind}`},
    el("span", {}, name)), text);
  return [head("What goes in, and what is to come out"), el("div", {class: "two"}, el("div", {},
    D.about ? el("p", {}, `${D.task}: ${D.about}`) : null,
    el("p", {}, `This is step ${count(D.number)} of a training, operation by operation: ` +
      `${plural(forward.length, "operation")} forward to the loss, ` +
      `${S.length - forward.length} back, then Adam. Each number comes from that one step` +
      `${D.film ? ", and a film shows the training that follows" : ""}.`),
    el("p", {}, el("span", {class: "big"}, count(trained)), ` of ${count(total)} parameters are ` +
      `trained.${trained < total ? " For the others no gradient is computed at all." : ""}`),
    el("p", {class: "texts"}, "This page runs the textbook operations, whose source it shows. " +
      `Training itself runs faster versions of them: with those the loss is ${num(D.fast, 9)}, ` +
      `here it is ${num(D.loss, 9)}.`),
    D.unseen.length ? el("p", {}, `The trunk's own code reads ${D.unseen.join(", ")}: what it ` +
      "computes is not among these operations.") : null,
    el("table", {}, Object.entries(D.counts).map(([g, [n, t]]) => el("tr", {}, el("td", {}, g),
      el("td", {class: "n"}, count(n)), el("td", {}, el("span", {class: `bar ${t ? "t" : "f"}`,
        style: `width:${Math.max(3, 190 * Math.sqrt(n / total))}px`})), el("td", {}, t ?
        "● trained" : "▨ frozen")))),
    el("p", {class: "texts"}, "The length of a bar is the square root of the count. " +
      (D.counts.pos ? `pos counts the ${D.tokens} positions that are used.` : "")),
    el("div", {class: "legend"}, swatch("trained", "ln", "trained parameters"),
      swatch("frozen", "lin", "frozen parameters"), swatch("plain", "gelu", "no parameters")),
    el("p", {class: "texts"},
      "On the strip above: lin linear, ln layer norm, attn attention, soft " +
      "softmax, drop dropout, pos positions, + residual, last keeps only the last tokens, where " +
      "the answers are, CE cross entropy, lse log of the sum of exponentials (within CE). " +
      WAITS),
    el("p", {class: "texts"}, "The trunk is the transformer between the input and the output " +
      "layer. need says which gradients of an operation are wanted, in the order of its inputs. " +
      "e, in the cache of lse, is exp(x − max(x)). The step runs in float32, about 7 digits; " +
      "the gradient checks in float64, about 16.")),
  el("div", {}, chooser(), el("div", {class: "arrays"}, matrix({name: "x", array: D.x}),
    matrix({name: "y", array: D.y})),
  D.names.length ? el("p", {class: "texts"}, `The tokens in order: ${D.names.join(" ")}.${
    readAt() ? ` The answers y are read at the last ${D.tokens - readAt()}.` : ""}`) : null,
  D.x === D.y ? null : el("p", {class: "texts"}, "The frame marks the example that is chosen."),
  el("h3", {class: "keys", style: "margin-top:14px"}, "With the keys"),
  el("table", {class: "keys"}, KEYS.map(([k, text]) => el("tr", {}, el("td", {},
    k.split(" ").map(x =>
    [el("kbd", {}, x), " "]).flat()), el("td", {}, text))))))];
}
const KEYS = [["→ ←", "the next operation, the one before"],
  ["↓ ↑", "the next block, the one before"], ["L", "the loss"], ["Home", "the start"],
  ["A", "Adam, the end of the step"], ...(D.film ? [["F",
    "the training as a film; there → ← move through it"]] : []),
  ...(D.breaks.length ? [["1 … 5", "break the backward pass; once more mends it"]] : []),
  ["Tab", "into the matrices: there the arrows read numbers, and Enter shows where one comes " +
    "from; Escape leaves the matrix"]];

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
    el("p", {}, `${(100 * D.accuracy).toFixed(1)} % of the answers are right.`)];
  if (!l) return [top, el("div", {class: "two"}, el("div", {}, intro), stack())];
  const p = array(l.p.array), hot = array(l.hot), d = array(l.d), nd = p.shape.length;
  const rows = [];
  const per = p.shown.slice(1).reduce((a, b) => a * b, 1), V = p.shown[nd - 1];
  const lead = p.axes.slice(1, -1);         // where the answers stand among the tokens
  const first = readAt();
  const from = state.example * per, most = Math.min(per, 40);
  for (let k = 0; k < most; k++) {
    const at = from + k, v = p.values[at], h = hot.values[at], diff = v - h;
    const token = Math.floor(k / V), w = 50 * Math.abs(diff);
    rows.push(el("tr", {class: k % V === 0 ? "new" : ""}, el("td", {}, k % V === 0 ?
      `${token}${first ? `, at ${first + token}` : ""}` : ""), el("td", {class: "mono", style:
        "white-space:nowrap"},
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
    first ? el("p", {}, `The answers are read at the last ${p.shape[1]} tokens: "0, at ${first}" ` +
      `is answer 0, read at token ${first} of the input.`) : null,
    el("p", {}, "Orange: push this score down. Blue: push it up. Where the model is sure and " +
      "right nothing is left to learn.")),
  el("div", {class: "middle wide"}, chooser(), el("table", {}, el("tr", {}, el("th", {},
    lead.length > 1 ? "answer" : "token"), el("th", {}, "class"),
  el("th", {class: "roomy"}, "probability"),
  el("th", {class: "n"}, "p"), el("th", {class: "n roomy"}, "one-hot"),
  el("th"), el("th", {class: "n"}, "p − one-hot"), el("th", {class: "n"}, "dlogits")), rows),
    most < per ? el("p", {class: "texts"},
    `The first ${most} of ${per} rows.`) : null), stack())];
}

const saved = (list, keep = () => true) => list.flatMap(i => S[i].missing).filter(keep)
  .reduce((t, m) => t + m.cost, 0);
function restFrame() {
  return [head("Below: nothing"), el("div", {class: "two"}, el("div", {},
    el("p", {}, `${plural(rest.length, "operation")} ran forward and not back: nothing in them, ` +
      "and nothing below them, is trained. They kept no cache."),
    el("p", {}, "Their gradients would have cost ", el("span", {class: "big"}, count(saved(rest))),
      " multiply-adds (for a bias: additions).")), el("div", {class: "never", style: "width:100%"},
        el("span", {},
    rest.map(i => S[i].name).join(", "))))];
}

function adamFrame() {
  const A = D.adam, trained = A.rows.filter(r => r.trained), most = Math.max(...A.rows.map(
    r => r.moved));
  const spared = {};                        // what a frozen parameter's gradients would have cost
  S.forEach(s => (s.missing || []).forEach(m => { if (m.of) spared[m.of] = {unit: unit(s.op,
    m.name),
    cost: (spared[m.of] || {cost: 0}).cost + m.cost}; }));
  const frozen = A.rows.filter(r => !r.trained), size = r => r.shape.reduce((a, b) => a * b, 1);
  if (state.row === null || !A.rows[state.row]) state.row = A.rows.findIndex(
    r => r.grad !== undefined);
  const other = saved(forward, m => m.why !== "frozen"), asking = forward.filter(i =>
    saved([i], m => m.why !== "frozen")), unasked = asking.length > 3 ?
    `${asking.length} operations` : asking.map(i => `the dx of ${S[i].name}`).join(", ");
  const list = el("div", {class: "list", tabindex: 0, role: "group", "aria-label": "parameters"});
  A.rows.forEach((r, n) => list.append(el("button", {class: "row", "data-key": `row${n}`,
    "aria-pressed": String(n === state.row), disabled: r.trained ? null : true, onclick: () => {
    state.row = n; state.entry = 0; state.entryAt = r.shape.map(() => 0); render();
  }}, el("span", {class: "label"}, (r.trained ? "● " : "▨ ") + r.name.replace("trunk.", "")),
  r.trained ? el("span", {class: "bar t", style: `width:${Math.max(1, 70 * r.moved / most)}px`}) :
    el("span", {class: "bar f", style: "width:70px"}), el("span", {}, r.trained ?
    `${num(r.moved, 2)}${r.changed < size(r) ? `; ${count(r.changed)} of ${count(size(r))} moved` :
      ""}` : (spared[r.name] || {}).cost ? `saved ${plural(spared[r.name].cost,
      spared[r.name].unit)}` : "frozen"))));
  const r = A.rows[state.row];
  state.entryAt = state.entryAt || (r ? r.shape.map(() => 0) : []);
  const right = el("div", {});
  if (r && r.grad !== undefined) {
    const i = Math.min(state.entry, array(r.before).values.length - 1);
    const get = key => array(r[key]).values[i];
    const [b1, b2] = A.betas, m = get("m"), v = get("v"), x = get("before");
    const keep = 1 - D.lr * A.decay * (r.shape.length > 1), kept = keep === 1 ? "" :
      ` · ${num(keep, 7)}`;                 // weight decay, of matrices only
    const mh = m / (1 - b1 ** A.t), vh = v / (1 - b2 ** A.t);
    right.append(el("h3", {}, `${r.name}, ${shape(r.shape)}`), el("div", {class: "arrays"},
      [["x", "before"], [A.factor < 1 ? "g, clipped" : "g", "grad"], ["m", "m"], ["v", "v"],
        ["x after", "after"]].map(
        ([name, key]) => matrix({name, array: r[key]}, "", null, null, (entry, at) => {
          state.entry = entry; state.entryAt = at; render();
        }))),
    el("div", {class: "asked"}, el("h3", {}, `Entry [${state.entryAt.join(", ")}] in numbers, ` +
      `t = ${A.t}`,
      el("span", {class: "screen"}, "; click another one")),
      el("div", {class: "sum"}, `m / (1 − ${b1}^t) = ${num(mh, 5)},  v / (1 − ${b2}^t) = ` +
        `${num(vh, 5)}`, el("br"), `x${kept} − lr · ${num(mh, 5)} / (√${num(vh, 5)} + ` +
        `${num(A.eps,
          1)})`,
      el("br"), `= ${num(x, 7)}${kept} − ${num(D.lr, 4)} · ${num(mh / (Math.sqrt(vh) + A.eps),
        5)} = ` +
        `${num(get("after"), 7)}`)));
  }
  return [head("Adam", el("span", {class: "badge trained"}, `● ${count(trained.reduce((t, r) =>
    t + r.changed, 0))} numbers move`), el("span", {class: "badge frozen"}, el("span", {},
    `▨ ${count(frozen.reduce((t, r) => t + size(r), 0))} bit for bit unchanged`))),
  faultNote("This is the update of the right step: the page does not carry the fault on into " +
    "Adam or the film."),
  el("div", {class: "two"}, el("div", {}, el("p", {}, "The loss of this batch: ",
    el("span", {class: "big"}, `${num(D.losses[0], 5)} → ${num(D.losses[1], 5)}`)),
  el("p", {}, `The norm of all gradients together is ${num(A.norm, 4)}; ${A.factor < 1 ?
    `clipped to ${A.clip}: each is multiplied by ${num(A.factor, 4)}.` :
    `no more than ${A.clip}, so nothing is clipped.`} The learning rate is ${num(D.lr, 4)}.`),
  saved(forward) ? el("p", {}, `The gradients that were never computed would have cost ` +
    `${plural(saved(forward), "multiply-add")} (for a bias: additions).${other ? ` Of these ` +
    `${count(other)} belong to ${unasked}, below which nothing learns.` : ""}`) : null,
  el("p", {class: "doc"}, el("span", {class: "formula"},
    "x = x − lr · (m / (1 − b1^t)) / (√(v / (1 − b2^t)) + eps)")),
  el("h3", {}, "How far each parameter moved (root mean square); " +
    "▨ frozen: what its gradient would have cost"), list), right)];
}

function filmFrame() {
  const F = D.film, f = F.frames[state.frame];
  const slider = el("input", {type: "range", min: 0, max: F.frames.length - 1, step: 1, id: "film",
    class: "screen",
    value: state.frame, "aria-label": "training step", "aria-valuetext": `step ${f.step}`});
  slider.addEventListener("input", () => { state.frame = +slider.value; film(); });
  const box = el("div", {class: "two"}, el("div", {}, slider, el("p", {id: "filmstep"}),
    el("canvas", {id: "curve", role: "img"}), el("div", {id: "right"})),
  el("div", {}, el("h3", {}, `Attention on example 0 of the start page${F.layers.length ?
    ": one row per block, one column per head; queries run down, keys across; the full colour is " +
    "1 (rounded to 1/255)" : ": none in this trunk"}`), example0(),
  el("div", {id: "maps"})));
  return [head("Training as a film", el("span", {class: "where"},
    `a picture every ${plural(F.every, "step")}`)), box];
}
function example0() {                       // its tokens and answers, where they are numbers
  const x = array(D.x), y = array(D.y), per = a => a.shown.slice(1).reduce((n, m) => n * m, 1);
  const words = a => [...a.values.slice(0, per(a))].map(v => num(v)).join(" ");
  return x.shape.length > 2 && x.shape[2] > 1 || per(x) > 40 || per(y) > 40 ? null :
    el("p", {class: "texts"}, `x ${words(x)}; y ${words(y)}`);
}
function film() {
  const F = D.film, f = F.frames[state.frame];
  const text = document.getElementById("filmstep");
  if (!text) return;
  text.replaceChildren(el("span", {class: "big"}, `after ${plural(F.first - 1 + f.step,
    "step")}`), f.step ? ` mean loss of the last ${plural(Math.min(F.every, f.step), "batch")
      .replace("batchs", "batches")} ` : " loss of the next batch ",
  `${num(mean(F.losses.slice(Math.max(0, f.step - F.every), Math.max(1, f.step))), 4)}, ` +
    `${(100 * f.accuracy).toFixed(1)} % right on 64 test examples, other ones than the batch`);
  document.getElementById("film").setAttribute("aria-valuetext", text.textContent);
  const canvas = document.getElementById("curve"), w = Math.min(480, window.innerWidth - 50);
  const h = 200, g = drawOn(canvas, w, h), top = Math.max(...F.losses);
  canvas.setAttribute("aria-label", `loss, from ${num(F.losses[0])} to ` +
    num(F.losses[F.losses.length - 1]));
  const X = n => 36 + (w - 46) * n / Math.max(1, F.losses.length - 1), Y = v => h - 22
    - (h - 34) * v / top;
  g.font = "11px system-ui, sans-serif"; g.fillStyle = paint("--soft");
  g.fillText(num(top, 3), 2, 16); g.fillText("0", 22, h - 18);
  g.fillText("loss of each batch", 42, 14);
  g.strokeStyle = paint("--line"); g.beginPath(); g.moveTo(36, 8); g.lineTo(36, h - 22);
  g.lineTo(w - 8, h - 22); g.stroke();
  g.strokeStyle = paint("--soft"); g.beginPath();
  F.losses.forEach((v, n) => n ? g.lineTo(X(n), Y(v)) : g.moveTo(X(n), Y(v))); g.stroke();
  g.strokeStyle = paint("--trained"); g.lineWidth = 2; g.beginPath();
  g.moveTo(X(Math.max(0, f.step - 1)), 8); g.lineTo(X(Math.max(0, f.step - 1)), h - 22); g.stroke();
  document.getElementById("right").replaceChildren(...(f.right.length ? [el("h3", {},
    "Probability of each right answer on this example"), el("table", {}, f.right.map((p, i) =>
    el("tr", {}, el("td", {class: "n"}, String(i)), el("td", {}, el("div", {class: "pr"},
      el("i", {style: `width:${100 * p}%`}))), el("td", {class: "n"}, p.toFixed(3)))))] : []));
  const few = Math.min(4, F.frames.length - 1), onPaper = Array.from({length: few + 1}, (_, n) =>
    F.frames[Math.round(n * (F.frames.length - 1) / few)]);
  document.getElementById("maps").replaceChildren(...(!printing ? [pictures(f)] : onPaper.map(
    g => el("div", {}, el("h3", {}, `after ${plural(F.first - 1 + g.step, "step")}`),
      pictures(g)))));
}
function pictures(f) {                      // attention of every block and head
  const F = D.film, heads = f.maps.length ? f.maps[0].shape[0] : 0;
  const columns = `max-content repeat(${heads}, minmax(0, ${printing ? 42 : 84}px))`;
  return el("div", {class: "maps", style: `grid-template-columns:${columns}`}, f.maps.flatMap((m,
    layer) => {
    const [H, Q, K] = m.shape, values = bytes(m.data, Uint8Array), row = [el("span", {},
      F.layers[layer].replace("trunk.", "").replace(".attn", ""))];
    for (let k = 0; k < H; k++) {
      const c = el("canvas", {width: K, height: Q, role: "img",
        "aria-label": `attention of ${F.layers[layer]}, head ${k}`});
      const ctx = c.getContext("2d"), image = ctx.createImageData(K, Q);
      for (let n = 0; n < Q * K; n++) {
        const rgb = color(values[k * Q * K + n] / 255, 1, true);
        image.data.set([...rgb, 255], 4 * n);
      }
      ctx.putImageData(image, 0, 0);
      row.push(c);
    }
    return row;
  }));
}
const mean = list => list.reduce((a, b) => a + b, 0) / list.length;

// ------------------------------------------------------------------------ moving about

function render() {
  const f = frames[state.at], active = document.activeElement;
  const focus = active.dataset.key ? `[data-key="${active.dataset.key}"]` :
    active.closest("#ribbon") ? "#ribbon .now" : null;  // what had the keyboard has it again
  tip();
  drawings = []; state.terms = [];
  ribbon(); breaks();
  const content = {home: homeFrame, loss: lossFrame, rest: restFrame, adam: adamFrame,
    film: filmFrame,
    step: () => stepFrame(S[f.i])}[f.kind]();
  document.getElementById("frame").replaceChildren(...content.filter(Boolean));
  if (f.kind === "film") film();
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
}
function block(direction) {                 // the next group of the ribbon, in time
  const key = n => {
    const g = frames[n];
    return g.kind === "step" ? `${S[g.i].back}${groups.indexOf(groupOf(g.i))}` : g.kind;
  };
  let n = state.at;
  const here = key(n);
  while (n + direction >= 0 && n + direction < frames.length && key(n) === here) n += direction;
  if (direction < 0) {                      // to the start of that group
    const there = key(n);
    while (n > 0 && key(n - 1) === there) n--;
  }
  go(n);
}
document.addEventListener("keydown", e => {
  if (e.ctrlKey || e.metaKey || e.altKey) return;
  if (e.target.tagName === "INPUT" && /^(Arrow|Page)/.test(e.key)) return;   // the slider's own
  const act = {ArrowRight: () => go(state.at + 1), ArrowLeft: () => go(state.at - 1),
    ArrowDown: () => block(1), ArrowUp: () => block(-1), Home: () => go(0),
    l: () => go(frameOf.loss), a: () => go(frameOf.adam), End: () => go(frames.length - 1),
    f: () => { if (D.film) { go(frameOf.film); document.getElementById("film").focus(); }
    }}[e.key.length === 1 ? e.key.toLowerCase() : e.key];
  const n = "12345".indexOf(e.key);
  if (act) act(); else if (n >= 0 && n < D.breaks.length) toggle(n); else return;
  e.preventDefault();
});
document.getElementById("title").textContent = D.title;
document.getElementById("facts").textContent = `${D.trunk ? D.trunk + ", " : ""}step ` +
  `${count(D.number)}, ${plural(D.batch, "example")} of ${plural(D.tokens, "token")}`;
document.getElementById("keys").append(...KEYS.slice(0, -1).map(([k, t]) => el("span", {},
  ...k.split(" ").map(x => el("kbd", {}, x)), ` ${t}`)), el("span", {class: "note"},
  "Cells show rounded numbers; ≈0 is small but not 0. ", el("i", {class: "screen"},
    `${window.matchMedia("(hover: none)").matches ? "Tap" : "Point at"} a cell to read it in ` +
    "full. "), "A large array is cut, and says so; the norm of a row is that of the whole row. " +
    WAITS));
DARK.addEventListener("change", render);
for (const [event, on] of [["beforeprint", true], ["afterprint", false]])
  window.addEventListener(event, () => { printing = on; render(); });
window.addEventListener("resize", () => { if (frames[state.at].kind === "film") film(); });
render();
