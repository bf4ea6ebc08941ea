// What stands under the curve (settings, race, faults), and what tests and readers call.

const slider = (id, label, min, max, step, value, text, act, note) => el("label", {class: "slider"},
  el("span", {}, label, " ", el("output", {id: `${id}-value`}, text(value))),
  el("input", {type: "range", id, min, max, step, value, "aria-valuetext": text(value),
    oninput: e => {
      by(`${id}-value`).textContent = text(Number(e.target.value));
      e.target.setAttribute("aria-valuetext", text(Number(e.target.value)));
      act(Number(e.target.value));
    }}), note ? el("small", {}, note) : null);
const two = v => Number(v.toPrecision(2));
const scale_slider = (id, value, act) => slider(id, "initialisation scale", -1.5, 1, 0.05,
  Math.log10(value), v => short(two(10 ** v)), v => act(two(10 ** v)));

const PANELS = {
  settings: () => [
    slider("rate", "learning rate", -5, 0, 0.1, Math.log10(S.rate), v => short(two(10 ** v)),
      v => set({rate: two(10 ** v)}, true), "about how far Adam moves each trained number in a step"),
    slider("batch", "examples in a batch", 0, 6, 1, Math.log2(S.batch), v => String(2 ** v),
      v => set({batch: 2 ** v}, true)),
    el("fieldset", {}, el("legend", {}, "the frozen weights are"),
      Object.entries(KINDS).map(([kind, text]) => el("label", {}, el("input", {type: "radio",
        name: "weights", id: `weights-${kind}`, value: kind, checked: kind === S.weights,
        onchange: () => set({weights: kind})}), ` ${text}`))),
    S.weights === "random" ? scale_slider("scale", S.scale, v => set({scale: v}, true)) : null,
    S.weights === "turned" ? el("fieldset", {}, el("legend", {}, "the input layer starts in patterns that are"),
      Object.entries(STARTS).map(([start, text]) => el("label", {}, el("input", {type: "radio",
        name: "start", checked: start === S.start, onchange: () => set({start})}), ` ${text}`))) : null,
    el("p", {class: "note"}, {
      pretrained: `${D.model}${D.source ? `, which has learned ${D.source},` : ""} kept as it was.`,
      statistics: "Random numbers with the mean and the spread of each pretrained matrix.",
      random: "Normal numbers of standard deviation scale / √channels. The paper's scale is " +
        "0.55. Where does it stop working?",
      turned: "One random block with one head; the slider under the model turns its keys."}[
      S.weights])],
  race: () => [
    el("p", {class: "note"}, "Three trunks (the model between its input and output layers), one " +
      "seed, the same batches. Random at scale 0.55 is as in the paper. “Its statistics” " +
      "are random numbers with the mean and spread of each pretrained matrix."),
    ...LANES.map((color, n) => [n, ...(S.race[n] || ["none", 1.4])]).map(([n, kind, scale]) =>
      el("div", {class: "racer", style: `--own:var(${lane_color(n)})`},
      el("select", {"aria-label": `trunk ${n + 1}`, id: `trunk-${n}`, onchange: e => racer(n, e.target.value, scale)},
        Object.entries({...KINDS, none: "none"}).map(([k, text]) =>
          el("option", {value: k, selected: k === kind}, text))),
      kind === "random" ? scale_slider(`scale-${n}`, scale, v => racer(n, kind, v, true)) : null)),
    el("button", {class: "main", onclick: () => { restart(); run(Infinity); }}, "Start the race")],
  break: () => {
    const fault = fault_of(S.fault);
    return [
      el("div", {class: "chips", id: "faults", role: "group", "aria-label": "Faults"}, FAULTS.map(f =>
        el("button", {"aria-pressed": String(f === fault),
          onclick: () => set({fault: f === fault ? null : f.id})}, f.title))),
      fault ? [el("p", {class: "note"}, el("b", {}, `${fault.op}: `), fault.why),
        el("code", {class: "cut"}, fault.cut), el("code", {class: "put"}, fault.put),
        el("p", {id: "verdict", role: "status"}),
        el("button", {onclick: verify}, "Check the gradients now")] :
        el("p", {class: "note"}, "Choose a fault. A copy of the model, with that line of " +
          "functional.py wrong, trains beside the right one. Does it still learn? Guess first.")];
  },
};

function racer(n, kind, scale, replace = false) {
  const race = S.race.filter((r, i) => i !== n);
  if (kind !== "none") race.splice(n, 0, [kind, scale, "drawn"]);
  if (race.length) set({race}, replace);
  if (!replace) show_panel();
}
function show_panel() {
  refill(by("panel"), PANELS[S.tab]());
  if (S.tab === "break" && S.fault && !S.tour) verify();
}
function show_controls() {
  by("task").value = S.task;
  document.body.dataset.tab = S.tab;
  by("slow").checked = S.pace > 0;
  by("explain").textContent = by(`about-${S.task}`).textContent;
  document.querySelectorAll("#tabs button").forEach(b => b.setAttribute("aria-pressed", String(b.dataset.tab === S.tab)));
}

// ------------------------------------------------------------------------ gradient checks

const TOLERANCE = 1e-4;
const check_parts = (lane, parts) =>
  ask_about(lane, {kind: "check", parts}, "checked").then(m => m.rows);
async function verify() {
  const fault = S.fault;
  const rows = await check_parts(1, PARTS.filter(p => !S.frozen.includes(p)));
  if (fault !== S.fault) return;
  const worst = rows.reduce((a, b) => b.error > a.error ? b : a, {error: 0});
  const wrong = rows.filter(r => r.error > TOLERANCE).length;
  noticed = {fault, checked: rows.length, wrong, worst};
  dirty = true;
}
function show_verdict() {
  const e = by("verdict");
  if (!e || models.length < 2) return;
  const [right, broken] = latest.lanes.map(l => percent(l.accuracy));
  const text = (latest.step ? `After ${plural(latest.step, "step")}: the right engine ${right}, the one ` +
    `with the fault ${broken}. ` : "Press Train. ") + check_text();
  if (e.textContent !== text) e.textContent = text;
}
function check_text() {
  if (!noticed || noticed.fault !== S.fault || lost()) return "";
  const {worst, wrong, checked} = noticed;
  return wrong ? `A gradient check notices: ${wrong} of ${checked} numbers are wrong, most of ` +
    `all in ${name_of(worst.part)} (in the code ${worst.name.replace("trunk.", "")}[${worst.index}]). The ` +
    `code says ${short(worst.gradient)}; moving the number a little, and measuring, gives ${short(worst.difference)}.` :
    `A gradient check notices nothing: ${checked} of ${checked} numbers agree.` +
    " What is wrong reaches nothing that is trained here.";
}

// ------------------------------------------------------------------------ controls

by("task").append(...Object.entries(TASKS).map(([id, t]) => el("option", {value: id}, t.title)));
by("task").onchange = e => set({task: e.target.value, look: null, ...TASKS[e.target.value].settings});
by("train").onclick = () => run(running ? 0 : Infinity);
by("one").onclick = () => run(1);
by("reset").onclick = () => { running = false; restart(); };
by("seed").onclick = () => set({seed: S.seed + 1});
by("slow").onchange = e => set({pace: e.target.checked ? 5 : 0});
document.querySelectorAll("#tabs button").forEach(b => { b.onclick = () => set({tab: b.dataset.tab}); });
by("heads").append(...heads.map((_, n) => el("button", {"aria-pressed": "true",
  style: `--own:var(${HEADS[n % HEADS.length]})`, onclick: e => {
    heads[n] = !heads[n];
    e.target.setAttribute("aria-pressed", String(heads[n]));
    draw();
  }}, `head ${n + 1}`)));
addEventListener("resize", () => { layout = null; dirty = true; });
document.addEventListener("visibilitychange", () => {
  if (document.hidden && running && !S.tour) run(0);       // nobody watches; a station's run ends by itself
});

// ------------------------------------------------------------------------ for tests and readers

window.playground = {
  state() {
    const {kind, scale, model} = models[shown], [trained, total] = sizes_of(model);
    const {loss, accuracy} = latest ? latest.lanes[shown] : {loss: null, accuracy: null};
    const {n_layer, n_head, n_embd} = D.config;
    const name = {pretrained: D.model, statistics: `statistics:${D.model}`,
      random: `random:${n_layer}x${n_head}x${n_embd}${scale === 0.55 ? "" : ` at scale ${scale}`}`,
      turned: `random:1x1x64@${scale},qk=${S.angle}`}[kind];
    return {task: S.task, model: name, step: latest ? latest.step : 0, loss, accuracy, trained,
      total, learning_rate: S.rate, frozen: [...S.frozen], faults: S.fault ? [S.fault] : [],
      agreement};
  },
  // Run n steps; the promise gives the state after them.
  train: n => run(n).then(() => window.playground.state()),
  // Change what the controls change: task, weights, scale, learning_rate, batch_size, seed, frozen
  // (parts or groups), faults, tab, bits.
  set(values) {
    const {learning_rate, batch_size, frozen, faults, bits: own, ...given} = values;
    const rest = Object.hasOwn(TASKS, given.task) ? {...TASKS[given.task].settings, ...given} : given;
    const one_of = (key, items, allowed) => {
      const wrong = items.find(item => !allowed.includes(item));
      if (wrong !== undefined)
        throw new Error(`set: no ${key} '${wrong}', expected one of ${allowed.join(", ")}`);
    };
    one_of("setting", Object.keys(rest), Object.keys(DEFAULTS));
    if (learning_rate !== undefined) rest.rate = learning_rate;
    if (batch_size !== undefined) rest.batch = batch_size;
    for (const [k, allowed] of [["task", TASKS], ["weights", KINDS], ["tab", PANELS]])
      if (k in rest) one_of(k, [rest[k]], Object.keys(allowed));
    for (const [k, v] of Object.entries(rest))
      if (READ[k] && v !== DEFAULTS[k] && read(k, written(k, v)) === undefined)
        throw new Error(`set: ${k} cannot be ${v}`);
    if (frozen) {
      one_of("part", frozen, [...PARTS, ...Object.values(GROUP_OF)]);
      rest.frozen = PARTS.filter(p => frozen.includes(p) || frozen.includes(GROUP_OF[p]));
    }
    if (faults) {
      one_of("fault", faults, FAULTS.map(f => f.id));
      if (faults.length > 1) throw new Error("set: expected at most one fault at a time");
      [rest.fault, rest.tab] = [faults[0] || null, faults.length ? "break" : S.tab];
    }
    const done = set(rest);
    if (own) {
      example.bits = own.map(Number);
      keep_bits();
      draw();
    }
    return done.then(() => window.playground.state());
  },
};
