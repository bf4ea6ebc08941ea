// ------------------------------------------------------------------------ Adam and the film

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
      `t = ${A.t}`, el("span", {class: "screen"}, "; click another one")),
      el("div", {class: "sum"}, `m / (1 − ${b1}^t) = ${num(mh, 5)},  v / (1 − ${b2}^t) = ` +
        `${num(vh, 5)}`, el("br"), `x${kept} − lr · ${num(mh, 5)} / (√${num(vh, 5)} + ` +
        `${num(A.eps, 1)})`,
      el("br"), `= ${num(x, 7)}${kept} − ${num(D.lr, 4)} · ${num(mh / (Math.sqrt(vh) + A.eps),
        5)} = ${num(get("after"), 7)}`)));
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
  A.t === 1 ? el("p", {}, "This is Adam's first step, t = 1. Its means hold one gradient g only: " +
    "m / (1 − b1) = g and v / (1 − b2) = g². So the step is lr · g / |g|: every number moves by " +
    `the learning rate, ${num(D.lr, 4)}, however large or small its gradient is, unless that is 0 ` +
    "or as tiny as eps. From t = 2 on, numbers whose gradient changes its sign move less.") : null,
  el("h3", {}, "How far each parameter moved (root mean square); " +
    "▨ frozen: what its gradient would have cost"), list), right)];
}

let playing = null;                         // the timer, while the film plays
function pause() {
  clearInterval(playing);
  playing = null;
  const button = document.getElementById("play");
  if (button) button.textContent = "▶ Play";
}
function play() {
  const end = D.film.frames.length - 1;
  if (state.frame === end) state.frame = 0;
  playing = setInterval(() => {
    state.frame += 1;
    film();
    if (state.frame >= end) pause();
  }, Math.max(120, Math.min(500, 8000 / end)));
  document.getElementById("play").textContent = "❚❚ Pause";
}
function filmFrame() {
  const F = D.film, f = F.frames[state.frame];
  const slider = el("input", {type: "range", min: 0, max: F.frames.length - 1, step: 1, id: "film",
    value: state.frame, "aria-label": "training step", "aria-valuetext": `step ${f.step}`});
  slider.addEventListener("input", () => { pause(); state.frame = +slider.value; film(); });
  const last = F.frames[F.frames.length - 1], layers = F.layers.length;
  if (!state.map && layers) state.map = [layers - 1, 0];
  return [head("Training as a film", el("span", {class: "where"},
    `a picture every ${plural(F.every, "step")}; after ${count(last.step)} ` +
    `${(100 * last.accuracy).toFixed(0)} % are right`)),
  el("div", {class: "player screen"}, el("button", {id: "play", "data-key": "play",
    onclick: () => playing ? pause() : play()}, "▶ Play"), slider, el("p", {id: "filmstep"})),
  el("div", {class: "two film"}, el("div", {}, el("canvas", {id: "curve", role: "img"}),
    el("div", {id: "right"})),
  el("div", {}, el("div", {id: "largemap"}), el("h3", {}, layers ? "Attention on example 0 of the " +
    "start page: a row for each block, a column for each head. Choose one to see it large." :
    "This trunk has no attention."), example0(), el("div", {id: "maps"})))];
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
    "step")}`), f.step ? ` mean loss of the last ${plural(Math.min(F.every, f.step), "batch",
    "batches")} ` : " loss of the next batch ",
  `${num(mean(F.losses.slice(Math.max(0, f.step - F.every), Math.max(1, f.step))), 4)}, ` +
    `${(100 * f.accuracy).toFixed(1)} % right on 64 test examples, other ones than the batch`);
  const slider = document.getElementById("film");
  slider.value = state.frame;
  slider.setAttribute("aria-valuetext", text.textContent);
  const canvas = document.getElementById("curve"), w = Math.min(480, window.innerWidth - 50);
  const h = 200, g = draw_on(canvas, w, h), top = Math.max(...F.losses);
  canvas.setAttribute("aria-label", `loss, from ${num(F.losses[0])} to ` +
    num(F.losses[F.losses.length - 1]));
  const X = n => 36 + (w - 46) * n / Math.max(1, F.losses.length - 1), Y = v => h - 22
    - (h - 34) * v / top;
  g.font = "11px system-ui, sans-serif"; g.fillStyle = paint("--soft");
  g.fillText(num(top, 3), 2, 16); g.fillText("0", 22, h - 18);
  g.fillText("loss of each batch", 42, 14);
  g.strokeStyle = paint("--line"); g.lineWidth = 1; g.beginPath(); g.moveTo(36, 8); g.lineTo(36, h - 22);
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
  const focused = document.activeElement.dataset.key;
  document.getElementById("maps").replaceChildren(...(!printing ? [pictures(f)] : onPaper.map(
    g => el("div", {}, el("h3", {}, `after ${plural(F.first - 1 + g.step, "step")}`),
      pictures(g)))));
  if (focused && focused.startsWith("map ")) document.querySelector(`[data-key="${focused}"]`).focus();
  if (state.map) largeMap(f);
}
const SHOWN_MAP = {axes: ["query", "key"], dtype: "|u1", example: 0};
function largeMap(f) {                      // one head's attention, with the names of the tokens
  const [layer, head] = state.map, [, Q, K] = f.maps[layer].shape, T = D.film.tokens;
  const values = bytes(f.maps[layer].data, Uint8Array).slice(head * Q * K, (head + 1) * Q * K);
  Object.assign(SHOWN_MAP, {shape: [T, T], shown: [Q, K], first: [T - Q, T - K],
    values: Float32Array.from(values, v => v / 255)});
  if (!D.arrays.includes(SHOWN_MAP)) D.arrays.push(SHOWN_MAP);
  drawings = [];
  const figure = matrix({name: "probabilities", array: D.arrays.indexOf(SHOWN_MAP)});
  figure.querySelector("b").textContent = `${D.film.layers[layer].replace("trunk.", "")}, head ${head}`;
  document.getElementById("largemap").replaceChildren(figure);
}
function pictures(f) {                      // attention of every block and head
  const F = D.film, heads = f.maps.length ? f.maps[0].shape[0] : 0;
  const columns = `max-content repeat(${heads}, minmax(0, ${printing ? 42 : 64}px))`;
  return el("div", {class: "maps", style: `grid-template-columns:${columns}`}, f.maps.flatMap((m,
    layer) => {
    const [H, Q, K] = m.shape, values = bytes(m.data, Uint8Array), row = [el("span", {},
      F.layers[layer].replace("trunk.", "").replace(".attn", ""))];
    for (let k = 0; k < H; k++) {
      const c = el("canvas", {width: K, height: Q});
      const ctx = c.getContext("2d"), image = ctx.createImageData(K, Q);
      for (let n = 0; n < Q * K; n++) {
        const rgb = color(values[k * Q * K + n] / 255, 1, true);
        image.data.set([...rgb, 255], 4 * n);
      }
      ctx.putImageData(image, 0, 0);
      row.push(el("button", {"data-key": `map ${layer} ${k}`, "aria-pressed": String(
        String(state.map) === `${layer},${k}`), "aria-label": `attention of ${F.layers[layer]}, ` +
        `head ${k}`, onclick: () => { state.map = [layer, k]; film(); }}, c));
    }
    return row;
  }));
}
const mean = list => list.reduce((a, b) => a + b, 0) / list.length;
