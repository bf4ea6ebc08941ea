// ------------------------------------------------------------------------ Adam

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
  const saved = forward.flatMap(i => S[i].missing).reduce((t, m) => t + m.cost, 0);
  const dearest = Math.max(1, ...Object.values(spared).map(({cost}) => cost));
  const list = el("div", {class: "list", tabindex: 0, role: "group", "aria-label": "parameters"});
  A.rows.forEach((r, n) => list.append(el("button", {class: "row", "data-key": `row${n}`,
    "aria-pressed": String(n === state.row), disabled: r.trained ? null : true, onclick: () => {
    state.row = n; state.entry = null; render();
  }}, el("span", {class: "label"}, (r.trained ? "● " : "▨ ") + r.name.replace("trunk.", "")),
  r.trained ? el("span", {class: "bar t", style: `width:${Math.max(1, 70 * r.moved / most)}px`}) :
    el("span", {class: "bar f", style: `width:${Math.max(1, 70 * (spared[r.name]?.cost || 0) / dearest)}px`}), el("span", {}, r.trained ?
    `${num(r.moved, 2)}${r.changed < size(r) ? `; ${count(r.changed)} of ${count(size(r))} moved` :
      ""}` : (spared[r.name] || {}).cost ? `saved ${plural(spared[r.name].cost,
      spared[r.name].unit)}` : "frozen"))));
  const r = A.rows[state.row];
  state.entry = state.entry || (r ? r.shape.map(() => 0) : []);
  const right = el("div", {});
  if (r && r.grad !== undefined) {
    const get = key => valueAt(array(r[key]), state.entry);
    const [b1, b2] = A.betas, m = get("m"), v = get("v"), x = get("before");
    const mh = m / (1 - b1 ** A.t), vh = v / (1 - b2 ** A.t);
    right.append(el("h3", {}, `${r.name}, ${shape(r.shape)}`), el("div", {class: "arrays"},
      [["x", "before"], [A.factor < 1 ? "g, clipped" : "g", "grad"], ["m", "m"], ["v", "v"],
        ["x after", "after"]].map(
        ([name, key]) => matrix({name, array: r[key]}, "", null, null, at => {
          state.entry = at; render();
        }))),
    el("div", {class: "asked"}, el("h3", {}, `Entry [${state.entry.join(", ")}] in numbers, ` +
      `t = ${A.t}`, el("span", {class: "screen"}, "; click another one")),
      el("div", {class: "sum"}, `m / (1 − ${b1}^t) = ${num(mh, 5)},  v / (1 − ${b2}^t) = ` +
        `${num(vh, 5)}`, el("br"), `x − lr · ${num(mh, 5)} / (√${num(vh, 5)} + ` +
        `${num(A.eps, 1)})`,
      el("br"), `= ${num(x, 7)} − ${num(D.lr, 4)} · ${num(mh / (Math.sqrt(vh) + A.eps),
        5)} = ${num(get("after"), 7)}`)));
  }
  return [head("Adam", el("span", {class: "badge trained"}, `● ${count(trained.reduce((t, r) =>
    t + r.changed, 0))} numbers move`), el("span", {class: "badge frozen"}, el("span", {},
    `▨ ${count(frozen.reduce((t, r) => t + size(r), 0))} bit for bit unchanged`))),
  faultNote("This is the update of the right step: the page does not carry the fault on."),
  el("div", {class: "two"}, el("div", {}, el("p", {}, "The loss of this batch: ",
    el("span", {class: "big"}, `${num(D.losses[0], 5)} → ${num(D.losses[1], 5)}`)),
  el("p", {}, `The norm of all gradients together is ${num(A.norm, 4)}; ${A.factor < 1 ?
    `clipped to ${A.clip}: each is multiplied by ${num(A.factor, 4)}.` :
    `no more than ${A.clip}, so nothing is clipped.`} The learning rate is ${num(D.lr, 4)}.`),
  saved ? el("p", {}, `The gradients that were never computed would have cost ` +
    `${plural(saved, "multiply-add")} (for a bias: additions).`) : null,
  el("p", {class: "doc"}, el("span", {class: "formula"},
    "x = x − lr · (m / (1 − b1^t)) / (√(v / (1 − b2^t)) + eps)")),
  el("p", {}, "This is Adam's first step, t = 1. Its means hold one gradient g only: " +
    "m / (1 − b1) = g and v / (1 − b2) = g². So the step is lr · g / |g|: every number moves by " +
    `the learning rate, ${num(D.lr, 4)}, however large or small its gradient is, unless that is 0 ` +
    "or as tiny as eps. From t = 2 on, numbers whose gradient changes its sign move less."),
  el("h3", {}, "How far each parameter moved (root mean square); " +
    "▨ frozen: what its gradient would have cost"), list), right)];
}
