// The page: its state, its controls, and its talk with the worker.

const SOURCE = document.getElementById("engine").textContent;
const by = id => document.getElementById(id);
let stopped = "", running = false;         // why nothing can be computed
function fail(message) {                   // a worker that is refused gives no message
  running = false;
  by("agreement").className = "badge bad";
  by("agreement").textContent = stopped = `The engine stopped: ${message || "this browser allows " +
    "no workers, so nothing can train here"}`;
}
addEventListener("error", e => fail(e.message));
const percent = v => `${Math.round(100 * v)} %`;
const short = v => v === 0 ? "0" : Math.abs(v) >= 1e-3 && Math.abs(v) < 1e4 ?
  Number(v.toPrecision(3)).toString().replace("-", "−") :
  v.toExponential(1).replace(/-/g, "−").replace("e+", "e");

// ------------------------------------------------------------------------ engines and workers

const FAULTS = D.faults, fault_of = id => FAULTS.find(f => f.id === id) || null;
// The engine as an expression whose value is an object of its functions, with a fault or without.
const names_of = source => Array.from(source.matchAll(/^(?:function|const) (\w+)/gm), m => m[1]);
const engine_text = id => `(FAULT => {${SOURCE}\nreturn {${names_of(SOURCE).join(", ")}};})("${id}")`;
const ENGINES = {};                        // in this page: for what is drawn
function engine(fault) {
  const id = fault || "right";
  if (!ENGINES[id]) {
    const script = el("script");
    script.textContent = `ENGINES["${id}"] = ${engine_text(fault || "")};`;
    document.head.append(script);
  }
  return ENGINES[id];
}
const E = engine(null), TASKS = E.TASKS;
const WORKER = new Blob([
  `const ENGINES = {right: ${engine_text("")},\n`,
  FAULTS.map(f => `${f.id}: ${engine_text(f.id)}`).join(",\n"), "};\n",
  by("worker").textContent], {type: "text/javascript"});

function halves(text) {                    // base64 of float16 numbers -> Float32Array
  return Float32Array.from(bytes(text, Uint16Array), h => {
    const sign = h >> 15 ? -1 : 1, exponent = (h >> 10) & 31, fraction = h & 1023;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
  });
}
const trunk = {arrays: {}, statistics: D.statistics};
const numbers = halves(D.weights);
D.trunk.reduce((at, [name, shape]) => {
  const end = at + shape.reduce((a, b) => a * b, 1);
  trunk.arrays[name] = Object.assign(numbers.slice(at, end), {shape});
  return end;
}, 0);

const [trainer, checker] = [0, 1].map(() => {
  try {
    return new Worker(URL.createObjectURL(WORKER));
  } catch {                                // a browser without workers, or one that forbids them
    return {postMessage: () => fail()};
  }
});
const waiting = [];                        // {done(message) -> whether it is answered, resolve}
for (const worker of [trainer, checker]) {
  worker.postMessage({kind: "start", config: D.config, trunk});
  worker.onmessage = ({data}) => {
    if (data.kind === "state") receive(data);
    for (const w of waiting.splice(0)) w.done(data) ? w.resolve(data) : waiting.push(w);
  };
  worker.onerror = e => fail(e.message);
}
let sent = 0, told = 0, reset_at = 0;
function tell(message, done) {             // to the trainer; resolves when it has answered
  const number = told = sent += 1;
  if (message.kind === "reset") reset_at = number;
  trainer.postMessage({number, ...message});
  return new Promise(resolve => waiting.push({resolve, done: m => m.kind === "state" &&
    m.number >= number && (!done || done(m))}));
}
function ask(message, kind) {              // of the checker
  const id = sent += 1;
  checker.postMessage({id, ...message});
  return new Promise(resolve => waiting.push({resolve, done: m => m.kind === kind && m.id === id}));
}

function ask_about(n, message, kind) {     // the same, about a model of the page
  const {model, ...lane} = models[n];
  const parameters = Object.entries(model.parameters).map(([name, p]) => [name, p.data]);
  return ask({settings: settings_of(), lane, parameters, ...message}, kind);
}

// ------------------------------------------------------------------------ what there is

const blocks = Array.from({length: D.config.n_layer}, (_, i) => `h.${i}`);
const ROWS = [{part: "input", label: "input layer", output: "input", height: 30},
  {part: "wpe", label: "+ positions", output: "trunk.wpe", height: 30},
  ...blocks.flatMap((h, i) => [
    {part: `${h}.ln_1`, label: "norm before attention", short: "norm → attention", block: i + 1, output: `trunk.${h}.ln_1`, height: 28},
    {part: `${h}.attn`, label: "attention", block: i + 1, kind: "attention",
      output: `trunk.${h}.attn.c_proj`, cache: `trunk.${h}.attn`, height: blocks.length > 3 ? 64 : innerWidth < 600 ? 84 : 112},
    {part: `${h}.ln_2`, label: "norm before feed-forward", short: "norm → feed-fwd", block: i + 1,
      output: `trunk.${h}.ln_2`, height: 28},
    {part: `${h}.mlp`, label: "feed-forward", block: i + 1, output: `trunk.${h}.mlp.act`, height: 34}]),
  {part: "ln_f", label: "final norm", output: "trunk.ln_f", height: 28},
  {part: "output", label: "output layer", output: "output", height: 28}];
const PARTS = ROWS.map(row => row.part);
const name_of = part => {
  const row = ROWS.find(r => r.part === part);
  return (row.block ? `block ${row.block}: ` : "") + row.label.replace("+ ", "");
};
const FPT = PARTS.filter(p => /attn|mlp/.test(p));
const GROUP_OF = Object.fromEntries(PARTS.map(p => [p, p === "wpe" ? "pos" : (p.match(/ln|attn|mlp/) || [p])[0]]));
const KINDS = {pretrained: "pretrained", statistics: "its statistics", random: "random",
  turned: "one random block, keys turned"};
const STARTS = {drawn: "random", aligned: "orange", opposed: "blue"};      // of its patterns
// Spread of the first random numbers: the paper's, 0.02 at 768 channels, is 0.55 / √channels.
const RANDOM = {0.1: "too small", 0.55: "random"};
const DEFAULTS = {task: D.task, weights: "pretrained", scale: 1.4, angle: 90,
  start: "drawn", ...TASKS[D.task].settings, seed: 0, frozen: FPT, fault: null, tab: "settings",
  pace: 0, look: null, bits: null, cut: [], tour: null, beamer: false,
  race: [["pretrained", 1.4, "drawn"], ["random", 0.55, "drawn"], ["random", 0.1, "drawn"]]};
const S = {...DEFAULTS};                   // what the URL holds
let models = [], latest = null, shown = 0, dirty = true, layout = null;
let cut_table = null, flipped = null, trip = null;
let example = null, hover = null, agreement = null, noticed = null;
const heads = Array(D.config.n_head).fill(true);

function lanes_of() {
  const lane = (kind, scale, start) => ({kind, scale, fault: null, ...kind === "turned" ? {angle: S.angle, start} : {}});
  const own = lane(S.weights, S.scale, S.start);
  if (S.tab === "race") return S.race.map(racer => lane(...racer));
  if (S.tab === "break" && S.fault) return [own, {...own, fault: S.fault}];
  return [own];
}
function lane_name({kind, scale, fault, start}, several) {
  if (fault) return "with fault";
  if (S.tab !== "race") return several ? "without fault" : KINDS[kind];
  return kind === "random" ? RANDOM[scale] || `random ${short(scale)}` :
    kind === "turned" ? `${STARTS[start]} start` : KINDS[kind];
}
const settings_of = () => ({task: S.task, seed: S.seed, rate: S.rate, batch: S.batch, frozen: S.frozen, pace: S.pace});

// ------------------------------------------------------------------------ training

function restart() {
  const task = TASKS[S.task], lanes = lanes_of();
  models = lanes.map(lane => {
    const model = E.make_model(D.config, task, {...trunk, ...lane}, S.seed);
    E.freeze(model, S.frozen);
    model.cuts = S.cut;
    return {...lane, model};
  });
  cut_table = trip = null;
  arrange();
  shown = Math.min(shown, models.length - 1);
  show_example();
  noticed = null;
  latest = null;
  const done = tell({kind: "reset", settings: settings_of(), lanes}).then(m => (running || measure_cuts(), m));
  if (running) running = false, S.tour || run(Infinity);
  return done;
}
// The bits of the picture: those that were set, S.bits, or some that the seed draws.
function show_example() {
  const task = TASKS[S.task], groups = (S.bits || "").split(".").map(g => [...g].map(Number));
  if (example && example.task === S.task && example.text === S.bits && (S.bits || example.seed === S.seed)) return;
  const drawn = task.draw(E.generator(S.seed, "example"));
  example = {task: S.task, text: S.bits, seed: S.seed, ...drawn};
  if (groups[0].length !== drawn.bits.length) return;
  example.bits = groups[0];
  if (groups.length === 3 && drawn.visible) [[example.which], example.visible] = groups.slice(1);
}
const text_of = ({bits, which, visible}) => [bits, ...visible ? [[which], visible] : []]
  .map(g => g.join("")).join(".");
function keep_bits() {                     // into the address
  S.bits = example.text = text_of(example);
  write_address(true);
  dirty = true;
}
function change() {
  noticed = null;
  for (const {model} of models) E.freeze(model, S.frozen);
  return tell({kind: "change", settings: settings_of()});
}
function run(steps, until) {               // steps, or until all lanes have this accuracy
  running = steps > 0 && !stopped;
  if (!running) measure_cuts();
  return tell({kind: "run", steps, until}, m => !m.running);
}
function receive(message) {
  if (message.number < reset_at) return;   // of the models before
  message.lanes.forEach((lane, n) => {
    for (const [name, data] of lane.parameters) {
      const p = models[n].model.parameters[name];
      if (p && p.data.length === data.length) p.data.set(data);
    }
  });
  latest = message;
  const ended = running && message.number === told && !message.running;
  if (message.number === told) running = message.running;
  if (ended) {
    measure_cuts();
    if (latest.lanes[shown].accuracy >= 0.995) say("100 % reached");
  }
  dirty = true;
}
// Fill a box; the focus stays on what is called as before, or goes to the box.
function refill(box, children) {
  const name = e => e.id || e.textContent, at = document.activeElement, inside = box.contains(at);
  box.replaceChildren(...children.flat().filter(e => e));
  const own = Array.from(box.querySelectorAll("button, select, input, summary, [tabindex]"));
  if (inside) (own.find(e => name(e) === name(at)) || box).focus();
}

const QUIET = ["bits", "look", "cut"];   // settings of the picture alone
function set(values, replace = false) {
  const before = JSON.stringify(lanes_of()), changed = Object.keys(values).filter(
    k => JSON.stringify(S[k]) !== JSON.stringify(values[k]));
  Object.assign(S, values);
  if (!changed.length) return Promise.resolve();
  if (changed.includes("task") && !("bits" in values)) S.bits = null;
  if (changed.includes("task") && !("cut" in values)) S.cut = [];
  write_address(replace);
  if (changed.includes("tour")) {          // what the station before it began is over
    running = false;
    flipped = trip = null;
    for (const notes of NOTES) notes.busy = null;
    if (S.tour) Object.assign(NOTES[S.tour - 1], {runs: [], cuts: {}});
    for (const b of by("heads").querySelectorAll("[aria-pressed=false]")) b.click();
  }
  const again = changed.some(k => ["task", "seed", "tour"].includes(k)) || before !== JSON.stringify(lanes_of());
  for (const {model} of models) model.cuts = S.cut;
  const measured = changed.includes("cut") && !again ? measure_cuts() : null;
  if (!again && changed.every(k => QUIET.includes(k))) {
    show_example();
    dirty = true;
    return Promise.resolve(measured);
  }
  const done = again ? restart() : change();
  show_controls();
  const slides = document.activeElement.type === "range";       // a slider that moves stays
  if (!slides || changed.some(k => ["tab", "fault", "weights", "tour"].includes(k))) show_panel();
  if (changed.includes("tour")) {
    show_station();
    by(S.tour ? "question" : "task").focus({preventScroll: true});
    scrollTo(0, 0);
  }
  dirty = true;
  return done;
}

// ------------------------------------------------------------------------ the model, drawn

const bits = el("div", {class: "tokens", id: "bits", role: "group", "aria-label": "bits in"});
const answers = el("div", {class: "tokens", id: "answers"});
const body = el("div", {id: "rows"});
const picture = by("picture"), score = el("span", {class: "back", id: "score"});
const way = el("span", {class: "back head"});
by("flow").prepend(el("div", {class: "row"}, el("span", {class: "part head"}, "bits in: press one to flip it"), bits, way));
body.append(...ROWS.map(row => {
  row.button = el("button", {class: "part", onclick: () => toggle(row.part)});
  row.back = el("span", {class: "back"});
  row.line = el("div", {class: "row", style: `height:${row.height}px`}, el("span", {class: "names"},
    row.button), el("span"), row.back);
  return row.line;
}));
const BRACKETS = blocks.map((_, i) => el("span", {class: "block", "aria-hidden": "true"}, `block ${i + 1}`));
body.append(...BRACKETS, picture);
by("flow").append(body, el("div", {class: "row"},
  el("span", {class: "part head"}, "the model's answers"), answers, score));

// Choose the rows of the model, of a station those that it speaks of.
let drawn_rows = ROWS, height = 0, chart_height = 196;
function arrange() {
  const {model} = models[Math.min(shown, models.length - 1)], now = station();
  const parts = new Set(Object.values(model.parameters).map(p => p.part));
  drawn_rows = ROWS.filter(row => parts.has(row.part) && (!now || !now.rows || now.rows.includes(row.part)));
  for (const row of ROWS) row.line.hidden = !drawn_rows.includes(row);
  [...by("heads").children].forEach((b, n) => { b.hidden = n >= model.config.n_head; });
  layout = null;
}
const has_lines = row => row.kind === "attention" && (!station() || station().show.includes("lines"));
// Give the rows their heights and share `extra` pixels among them, most to the lines of attention.
function place_rows(extra) {
  const weight = row => has_lines(row) ? 4 : 1;
  const share = extra / drawn_rows.reduce((sum, row) => sum + weight(row), 0);
  height = drawn_rows.reduce((top, row) => {
    row.top = top;
    row.size = Math.floor((row.kind !== "attention" || has_lines(row) ? row.height : 30) +
      Math.min(weight(row) * share, has_lines(row) ? 150 : 14));
    row.line.style.height = `${row.size}px`;
    return top + row.size;
  }, 0);
  BRACKETS.forEach((bracket, i) => {
    const own = drawn_rows.filter(row => row.block === i + 1), last = own[own.length - 1];
    bracket.hidden = !own.length;
    if (own.length) bracket.style = `top:${own[0].top + 2}px;height:${last.top + last.size - own[0].top - 4}px`;
  });
}
// Fill the screen beside a station's text; measured once, since to ask the browser takes milliseconds.
function fit() {
  const chart = by("chart"), zoom = document.body.currentCSSZoom || 1, sized = extra => {
    place_rows(extra);
    chart.style.height = `${chart_height}px`;
    return innerHeight / zoom - 14 - Math.max(...["model", "bar", "chart", "sentence", "panel"].map(id => by(id)).filter(
      e => e.offsetHeight).map(e => (e.getBoundingClientRect().bottom + scrollY) / zoom));
  };
  chart_height = 196;
  by("form").style.height = `${form_height()}px`;
  const spare = sized(0), has_chart = chart.offsetHeight > 0;
  if (station() && innerWidth > 900) {
    const left = sized(by("flow").offsetHeight ? Math.max(0, spare) * (has_chart ? 0.55 : 1) : 0);
    if (has_chart) chart_height = Math.floor(Math.max(150, Math.min(560, 196 + left)));
    chart.style.height = `${chart_height}px`;
  }
  layout = {width: bits.clientWidth, chart: chart.clientWidth};
  picture.style.left = `${bits.offsetLeft}px`;
  return true;
}

function toggle(part) {
  set({frozen: S.frozen.includes(part) ? S.frozen.filter(p => p !== part) :
    PARTS.filter(p => p === part || S.frozen.includes(p))});
}
function send_bit(query, key) {            // once along a line of attention
  trip = {query, key, begun: performance.now()};
  dirty = true;
}
function flip(i) {
  const task = TASKS[S.task];
  if (i < example.bits.length) example.bits[i] ^= 1;
  else example.visible[i - example.bits.length] ^= 1;
  keep_bits();
  flipped = i;
  say(`${task.names[Math.floor(i / task.input_dim)]} flipped`);
  if (trip) send_bit(trip.query, trip.key);
  draw();                                  // at once, not at the next frame
  show_judged();
}
function show_bits() {
  const task = TASKS[S.task], x = task.inputs(example), d = task.input_dim;
  if (bits.children.length !== task.tokens || bits.dataset.task !== S.task) {
    bits.dataset.task = S.task;
    bits.replaceChildren(...task.names.map((name, t) => el("span", {class: "token"},
      Array.from({length: d}, (_, j) => el("button", {class: "bit", onclick: () => flip(t * d + j),
        onfocus: () => look_at(t), onblur: () => look_at(null), onmouseenter: () => look_at(t),
        onmouseleave: () => look_at(null)})), el("small", {}, name))));
    answers.replaceChildren(...task.names.map(() => el("span", {class: "token"})));
    by("flow").lastChild.firstChild.textContent = "the model's answers" + (d > 1 ? "; in full colour: hidden bits" : "");
  }
  const hidden = d > 1;
  bits.querySelectorAll("button").forEach((b, i) => {
    const v = hidden ? "0·1"[x[i] + 1] : String(x[i]);
    b.textContent = v;
    b.className = `bit v${v === "·" ? "x" : v}`;
    const name = task.names[Math.floor(i / d)];
    b.setAttribute("aria-label", `${name} is ${v === "·" ? "masked" : v}, flip`);
  });
}
const look_at = t => { hover = t; dirty = true; };
const token_at = (e, box = picture.getBoundingClientRect()) =>
  Math.floor((e.clientX - box.left) / box.width * TASKS[S.task].tokens);
picture.addEventListener("mousemove", e => look_at(token_at(e)));
picture.addEventListener("mouseleave", () => look_at(null));
picture.addEventListener("click", e => {   // a token stays
  const t = token_at(e);
  set({look: S.look === t ? null : t}, true);
});

function draw() {
  dirty = false;
  if (!models.length) return;
  const task = TASKS[S.task], {model, fault} = models[shown];
  const batch = E.batch_of(task, [example]);
  const token = hover !== null ? hover : S.look;
  const look = token !== null && token < task.tokens ? token : null;
  const [logits, cache] = engine(fault).forward(model, batch.x);
  show_bits();
  const is_new = !layout;
  if (is_new) fit();
  draw_flow(picture, drawn_rows, cache, {tokens: task.tokens, width: layout.width, height, look,
    heads, read: task.output_tokens, cuts: S.cut, trip: trip && {...trip, bit: example.bits[trip.key],
      at: STILL.matches ? 0.5 : Math.min(1, (performance.now() - trip.begun) / 1600)}});
  if (trip && !STILL.matches && performance.now() - trip.begun < 1600) dirty = true;
  show_answers(task, logits, batch.y);
  show_parts(model);
  show_looking(task, cache, look);
  show_cuts(task);
  show_forms(model);
  show_numbers(model);
  show_judged();
  if (is_new) dirty = fit();               // now that every part has its content
}

function show_answers(task, logits, y) {
  const chosen = E.choices(logits, y.length), each = y.length / task.output_tokens;
  const first = task.tokens - task.output_tokens;
  const [p] = E.softmax(E.reshape(logits, [y.length, 2]));
  Array.from(answers.children).forEach((cell, t) => {
    if (t < first) return;
    const content = Array.from({length: each}, (_, j) => {
      const n = (t - first) * each + j, right = chosen[n] === y[n];
      const masked = example.visible && !example.visible[n] ? " masked" : "";
      return `<span class="answer ${right ? "right" : "wrong"}${masked}" ` +
        `title="${percent(p[2 * n + 1])} for 1">${chosen[n] < 0 ? "?" : chosen[n]}<i>${right ? "✓" : "✗"}</i></span>`;
    }).join("");
    if (cell.innerHTML !== content) cell.innerHTML = content;
  });
  const right = chosen.filter((c, n) => c === y[n]).length;
  score.textContent = `${right} of ${y.length} right`;
}

function show_parts(model) {
  const sizes = {};
  for (const {part, data} of Object.values(model.parameters))
    sizes[part] = (sizes[part] || 0) + data.length;
  const lane = latest && latest.lanes[shown], lowest = PARTS.findIndex(p => sizes[p] && !S.frozen.includes(p));
  const with_angles = S.tab === "break" && S.fault && latest && latest.lanes[1];
  const title = with_angles ? "angle to the right gradient" : "way back ↑ size of gradient";
  if (way.textContent !== title) way.textContent = title;
  ROWS.forEach((row, i) => {
    if (!sizes[row.part]) return;
    const frozen = S.frozen.includes(row.part);
    const key = `${frozen}${sizes[row.part]}`;
    if (row.key !== key) {
      row.key = key;
      row.button.className = `part ${frozen ? "frozen" : "trained"}`;
      row.button.setAttribute("aria-pressed", String(frozen));
      row.button.setAttribute("aria-label", `${name_of(row.part)}${row.short ? ` (${row.short})` : ""}, ` +
        `${count(sizes[row.part])} numbers, ${frozen ? "frozen: thaw" : "trained: freeze"}`);
      row.button.title = `${row.label}, ` + (frozen ? "frozen: press to thaw" : "trained: press to freeze");
      row.button.replaceChildren(el("span", {}, row.short || row.label),
        el("small", {}, sizes[row.part] < 1e5 ? count(sizes[row.part]) : `${Math.round(sizes[row.part] / 1000)}k`));
    }
    const state = i < lowest || lowest < 0 ? "ends" : frozen ? "through" : "learns";
    row.back.className = `back ${state}`;
    const angle = with_angles && with_angles.angles ? with_angles.angles[row.part] : undefined;
    if (state === "learns" && with_angles) {
      row.back.innerHTML = angle === undefined ? "" : angle === null ? "<b class=\"no\">gradient is 0</b>" : dial(angle);
    } else if (state === "learns") {
      const size = lane && lane.norms ? lane.norms[row.part] : 0;
      const share = size > 0 ? Math.max(0.03, Math.min(1, (Math.log10(size) + 4) / 5)) : 0;
      row.back.innerHTML = `<i style="width:${100 * share}%"></i>` + `<b>${size ? short(size) : "–"}</b>`;
    } else {
      const text = state === "ends" ? "no way back" : "passes through";
      if (row.back.textContent !== text) row.back.replaceChildren(el("b", {}, text));
    }
  });
}

function dial(degrees) {                   // an angle, drawn and in words
  const [x, y] = [Math.cos, Math.sin].map(f => f(degrees * Math.PI / 180));
  return `<svg viewBox="-13 -13 32 16" aria-hidden="true"><path d="M0 0H18" class="ray"/>` +
    `<path d="M0 0L${12 * x} ${-12 * y}" class="ray bad"/></svg>` +
    `<b class="${degrees < 1 ? "ok" : "no"}">${Math.round(degrees)}°</b>`;
}

function show_looking(task, cache, look) {
  const needs = look === null ? [] : task.needs(example, look), T = task.tokens;
  Array.from(bits.children).forEach((token, t) => {
    token.className = `token${needs.includes(t) ? " needed" : ""}${t === look ? " looks" : ""}`;
  });
  let text = "Go to a token, with a pointer, a finger or Tab, to see where it looks.";
  if (look !== null) {
    const names = needs.map(t => task.names[t]);
    text = `${task.names[look]} ` + (!names.length ? "gives no answer" : names.length > 2 ?
      `needs ${names[0]} … ${names[names.length - 1]}` : `needs ${names.join(" and ")}`) +
      ". It looks most at: ";
    text += blocks.map(h => cache[`trunk.${h}.attn`]).filter(c => c).map(({probabilities}, i) =>
      `block ${i + 1}, ` + heads.slice(0, probabilities.shape[1]).map((on, head) => {
        const row = probabilities.subarray((head * T + look) * T, (head * T + look + 1) * T);
        const key = row.indexOf(Math.max(...row));
        return on && key >= 0 ? `head ${head + 1} ${task.names[key]} ${percent(row[key])}` : "";
      }).filter(t => t).join(", ")).join("; ");
  }
  if (by("looking").textContent !== text) by("looking").textContent = text;
}

function sizes_of({parameters}) {          // how many numbers are trained, and how many there are
  const all = Object.values(parameters), size = ps => ps.reduce((sum, p) => sum + p.data.length, 0);
  return [size(all.filter(p => p.trainable)), size(all)];
}

function show_numbers(model) {
  const [trained, total] = sizes_of(model);
  const unseen = Object.values(model.parameters).filter(
    p => p.trainable && !drawn_rows.some(row => row.part === p.part)), [rest] = sizes_of({parameters: unseen});
  by("sentence").innerHTML = !trained ? "Everything is frozen: <b>nothing can learn</b>. Press a part to thaw it. " :
    `<b class="t">${count(trained)}</b> of ${count(total)} numbers are ` +
    `being trained; ${trained < total ? "the rest are <b>frozen</b>" : "nothing is frozen"}. ` +
    (rest ? `(${count(trained - rest)} in the pink rows drawn, ${count(rest)} in ${[...new Set(unseen.map(
      p => name_of(p.part).split(":")[0]))].join(", ")}: not in the picture.)` :
      latest && !S.tour ? `${(latest.multiply_adds / 1e6).toFixed(2)} million multiply-adds a step.` : "");
  by("train").textContent = !running ? "Train" : S.tour ? "Stop" : "Pause";
  by("train").setAttribute("aria-pressed", String(running));
  if (!latest) return;
  document.body.classList.remove("fresh");
  const lane = latest.lanes[shown];
  by("step").textContent = count(latest.step);
  by("accuracy").textContent = percent(lane.accuracy);
  by("loss").textContent = Number.isFinite(lane.loss) ? lane.loss < 5e-4 ? "< 0.001" :
    lane.loss.toFixed(3) : "not finite";
  by("speed").textContent = latest.speed ? `${count(Math.round(latest.speed))} steps/s` : "";
  if (layout.chart) draw_curves(by("curve"), latest.lanes, TASKS[S.task], [layout.chart, chart_height],
    S.tour ? NOTES[S.tour - 1].runs.filter(({lanes}, _, all) => lanes.length === 1 &&
      (all.length > 1 || lanes !== latest.lanes)) : []);
  by("reach").textContent = lost() || verdict_of(latest);
  const several = models.length > 1;
  by("lanes").hidden = !several;
  if (by("lanes").children.length !== (several ? models.length : 0))
    by("lanes").replaceChildren(...(several ? models : []).map((_, n) =>
      el("button", {onclick: () => {
        shown = n; cut_table = null; arrange(); draw(); running || measure_cuts(); }})));
  Array.from(by("lanes").children).forEach((b, n) => {
    const name = `${lane_name(models[n], several)}: `, share = percent(latest.lanes[n].accuracy);
    b.style.setProperty("--own", `var(${lane_color(n)})`);
    b.setAttribute("aria-pressed", String(n === shown));
    b.title = "draw this model";
    if (b.textContent !== name + share) b.replaceChildren(el("span", {}, name), share);
  });
  if (S.tab === "break") show_verdict();
}

// Draw what has changed; rarely where it takes long, and where motion is not wanted.
let cost = 0, drawn_at = 0;
function frame(now) {
  const pause = running && STILL.matches ? 500 : cost > 25 ? 3 * cost : 0;
  if (dirty && now - drawn_at >= pause) {
    const begin = performance.now();
    drawn_at = now;
    draw();
    cost = performance.now() - begin;
  }
  requestAnimationFrame(frame);
}
