// ------------------------------------------------------------------------ the frames

function formulaText(text) {                // ``code`` of a docstring
  const out = [];
  text.split(/``([\s\S]+?)``/).forEach((piece, i) => out.push(i % 2 ?
    el("span", {class: "formula"}, piece.replace(/\s+/g, " ")) :
    piece.replace(/:(?:func|class|meth):/g, "").replace(/`/g, "").replace(/->/g, "→")
      .replace(/\s+/g, " ")));
  return out;
}
function doc(text) {
  const box = el("div", {class: "doc"});
  text = text.replace(/::\s*\n\s*\n((?: {4}.*\n?)+)/g, (_, pre) => ":\u0001" + pre + "\u0001");
  text.split("\u0001").forEach((piece, i) => {
    if (i % 2) box.append(el("pre", {}, piece.replace(/^ {4}/gm, "")
      .replace(/(\S) {3,}/g, "$1\n").trimEnd()));
    else for (const p of piece.split(/\n\s*\n/)) if (p.trim()) box.append(
      el("p", {}, formulaText(p.trim())));
  });
  return box;
}
function source(step) {
  const s = D.sources[step.source], ran = D.runs[step.run] || {};
  const b = step.back && fault(), wrong = b && step.op === b.op && s.module === "minifpt.functional" ? b : null;
  const head = el("h3", {}, "Source, as it ran " +
    `(${s.module.replace(/\./g, "/")}.py)`);
  if (!s.lines.length) return el("div", {}, head, el("p", {}, "Its source is not at hand."));
  let indent = "", after = false;                        // below the fault the shapes are not those that ran
  const pre = el("div", {class: "source", tabindex: 0, "aria-label": "source"});
  for (const [n, line] of s.lines) {
    if (wrong && n === wrong.lines[0]) indent = line.match(/^ */)[0];
    const cut = wrong && n >= wrong.lines[0] && n <= wrong.lines[1], isRun = ran[n] !== undefined;
    const head = /^\s*(def|@)/.test(line) || !line.trim() || !Object.keys(ran).length
      || /^\s*#/.test(line) || (!isRun && continues(s.lines, n, ran));
    pre.append(el("div", {class: cut ? "cut" : isRun || head ? "" : "idle"}, el("i", {},
      String(n)), line.replace(/(\S) {2,}#/, "$1  #") || " ",
    ran[n] && !cut && !after ? el("span", {class: "gave"}, `→ ${ran[n]}`) : "",
    !isRun && !head ? el("span", {class: "gave", style: "color:var(--faint)"}, "did not run") :
      ""));
    after = after || cut;
    if (cut && n === wrong.lines[1]) for (const put of wrong.instead.split("\n"))
      pre.append(el("div", {class: "put"}, el("i", {}, "✗"), indent + put));
  }
  return el("div", {}, head, pre);
}
function continues(lines, n, ran) {         // a line that goes on from one that ran
  const i = lines.findIndex(l => l[0] === n);
  for (let j = i - 1; j >= 0; j--) {
    const open = lines.slice(j, i).map(l => l[1].replace(/#.*/, "")).join("");
    const depth = (open.match(/[([{]/g) || []).length - (open.match(/[)\]}]/g) || []).length;
    if (depth > 0) return ran[lines[j][0]] !== undefined;
  }
  return false;
}
const SIGNS = {linear: ["@", "+"], positions: ["+"]};      // between its inputs

function stack() {
  const f = frames[state.at], i = f.kind === "step" ? f.i : f.kind === "home" ? -1 :
    f.kind === "loss" ? firstBack - 0.5 : S.length;
  const plates = [];
  for (const n of forward) {
    const s = S[n];
    if (n > i || s.inside !== null || s.form === "NoneType" || s.partner === null) continue;
    if (s.partner < i) continue;
    plates.push({n, s, popped: s.partner === i, fresh: n === i});
  }
  const held = plates.filter(p => !p.popped);
  const box = el("div", {id: "stack"}, el("h3", {}, `Caches, a stack: ${held.length}, ` +
    kilo(held.reduce((t, p) => t + p.s.bytes, 0))));
  const list = el("ol", {tabindex: 0, "aria-label": "the stack of caches, newest first"});
  const now = f.kind === "step" ? groupOf(f.i) : null;
  let folded = null;
  plates.sort((p, q) => p.s.partner - q.s.partner);   // what is taken next is on top
  for (const p of plates) {
    const g = groupOf(p.n);
    if (g.fold !== null && g !== now && !p.fresh && !p.popped) {
      if (folded && folded.g === g) { folded.k++; folded.bytes += p.s.bytes; }
      else { folded = {g, k: 1, bytes: p.s.bytes, li: el("li")}; list.append(folded.li); }
      folded.li.replaceChildren(block_name(g.fold), el("small", {},
        `${plural(folded.k, "cache")}, ${kilo(folded.bytes)}`));
      continue;
    }
    list.append(el("li", {class: p.popped ? "popped" : p.fresh ? "new" : ""},
      p.fresh ? "↓ put: " : p.popped ? "↑ taken: " : "", p.s.form.replace("Cache", ""),
      el("small", {}, p.s.keeps.map(k => `${k.name} ${k.text}`).join("; ") +
        (p.s.bytes ? `, ${kilo(p.s.bytes)}` : ""))));
  }
  box.append(list, el("div", {class: "base"}, plates.length ? "" : "empty"));
  if (plates.some(p => p.s.keeps.some(k => k.name === "need"))) box.append(el("p", {class: "texts"},
    "need: which of its gradients are wanted, in the order of its inputs"));
  return box;
}

function faultNote(text) {
  return fault() && el("p", {class: "fault"}, text);
}
const unit = (op, name) => name === "db" || op === "positions" || op === "embedding" ?
  "addition" : "multiply-add";
function never(step) {                      // the gradients that were never computed
  const own = step.partner !== null ? S[step.partner] : step;
  return (own.missing || []).filter(m => m.why !== "backward was not run").map(m =>
    el("figure", {}, el("figcaption", {}, el("span", {class: "tag out"}, "out"),
      el("b", {}, m.name), ` ${shape(m.shape)} `,
      m.of ? el("span", {class: "f"}, `▨ ${m.of}`) : null),
    el("div", {class: "never"}, el("span", {}, el("b", {}, m.why === "frozen" ?
      "never computed: frozen" : `never computed: ${m.why}`), el("br"), m.cost ?
      `it would have cost ${plural(m.cost, unit(own.op, m.name))}` : ""))));
}

function checkTable(step) {
  const i = S.indexOf(step), b = fault(), error = b && b.wrong[i];
  const verdict = b && el("p", {class: error ? "no" : "ok"}, error ?
    `✗ With the fault its gradient is wrong, with a relative error of up to ${num(error, 2)}` :
    "✓ The fault does not reach its gradient");
  if (!checks[i]) return verdict;
  const rows = checks[i].map(d => [d, b ? b.values[d.n] : d.value]), agrees = ([d, value]) =>
    errorOf(value, d) <= TOLERANCE;
  const good = rows.every(agrees);
  return el("details", {open: Boolean(b)}, el("summary", {class: good ? "ok" : "no"}, good ?
    `✓ Gradient check: all ${rows.length} agree` : "✗ Gradient check: wrong"), verdict,
  el("table", {}, el("tr", {}, ["entry", b ? "with the fault" : "float64", "finite difference",
    "relative error", ""].map((title, n) => el("th", {class: n ? "n" : null}, title))),
  rows.map(([d, value]) => el("tr", {}, el("td", {class: "mono"}, `d${d.name}[${d.at.join(", ")}]`),
    [num(value, 6), num(d.numerical, 6), num(errorOf(value, d), 2)].map(text =>
      el("td", {class: "n"}, text)), el("td", {class: agrees([d, value]) ? "ok" : "no"},
      agrees([d, value]) ? "✓" : "✗")))), el("p", {class: "texts"}, RELATIVE));
}

function head(title, ...badges) {           // title: text, or a step
  const name = title.name && `${title.name}${title.back ? ", backward" : ""}`, way = places();
  const [next, back] = [beside(1), beside(-1)], skipped = frames.slice((back ?? state.at) + 1, state.at);
  const ends = [skipped[0], skipped[skipped.length - 1]].map(f => f && f.kind === "step" && words(S[f.i]));
  return el("div", {class: "top"}, el("h2", {"data-name": name || title}, name ? words(title) : title),
    name ? el("code", {class: "where"}, title.name) : null, badges, el("span", {class: "go"},
      el("button", {"data-key": "all", onclick: () => {
        state.all = !state.all;
        render();
      }}, state.all ? `The short path of ${path.length}` : `All ${S.length} operations`),
      el("button", {"data-key": "back", onclick: () => go(back), disabled: back === undefined,
        "aria-label": "back"}, "←"),
      el("span", {class: "where"}, !state.all ? `${way.includes(state.at) ? way.indexOf(state.at) + 1 : "–"} of ` +
        way.length : frames[state.at].kind === "step" ? `operation ${frames[state.at].i + 1} of ${S.length}` : ""),
      el("button", {"data-key": "next", onclick: () => go(next), disabled: next === undefined,
        "aria-label": "next"}, "→")), skipped.length > 0 && ends[0] && el("p", {class: "texts skipped"},
    `Left out since the screen before: ${skipped.length > 1 ? `${count(skipped.length)} operations, from ${
      ends[0]} to ${ends[1]}` : ends[0]}.`));
}
function badge(kind) {
  return el("span", {class: `badge ${kind}`}, el("span", {}, kind === "trained" ? "● trained" :
    kind === "frozen" ? "▨ frozen" : "no parameters"));
}

function stepFrame(step) {
  const i = S.indexOf(step), middle = el("div", {class: "middle"});
  const add = c => c && middle.append(c);
  add(chooser());
  const arrays = list => list.filter(p => p.array !== undefined);
  add(faultNote(step.back ?
    "Matrices, text and sums with the mark “right step” are those of the step without the fault. " +
    "The fault shows in the red lines of the source and in the line below." :
    "The fault is in the backward pass; what runs forward is unchanged."));
  const given = arrays(step.in), texts = step.in.filter(p => p.array === undefined
    && p.text !== "None" && !(p.name === "rng"));
  const row = el("div", {class: "arrays"});
  const signs = SIGNS[step.op + (step.back ? "_backward" : "")];
  given.forEach((p, n) => {
    if (signs && signs[n - 1]) row.append(el("span", {class: "sign"}, signs[n - 1]));
    row.append(matrix(p, p.cached ? "cache" : "in"));
  });
  if (signs) row.append(el("span", {class: "sign"}, "="));
  for (const p of step.out) {
    if (p.array === undefined) row.append(el("figure", {}, el("figcaption", {}, el("span",
      {class: "tag out"}, "out"), el("b", {}, p.name)), el("div", {class: "big"}, p.text)));
    else row.append(matrix(p, "out", (checks[i] || []).filter(d => "d" + d.name === p.name),
      p.formula || step.back ? step : null));
  }
  if (step.back) row.append(...never(step));
  for (const p of [...step.middle || []].reverse()) row.prepend(matrix(p, "on the way"));
  if (step.op === "softmax" && !step.back) row.prepend(row.lastChild);    // the map comes first
  if (texts.length) row.append(el("figure", {}, texts.map(p => el("div", {class: "texts"},
    el("span", {class: p.cached ? "tag cache" : "tag in"}, p.cached ? "cache" : "in"),
    `${p.name} = ${p.text}`))));
  add(row);
  if (step.out.some(p => p.formula)) add(el("p", {class: "texts screen"},
    `Click a number of an out matrix to ask where it comes from.${checks[i] ?
      " Those within a dashed frame have a finite difference." : ""}`));
  if (LATE.includes(step.op) && step.back) add(el("p", {class: "texts"}, WAITS));
  if (!step.back && step.partner === null && step.inside === null) add(el("p", {class: "texts"},
    "Nothing runs back through it: nothing below it learns."));
  if (step.back) add(checkTable(step));
  const kind = kindOf(step), where = step.inside !== null ?
    `inside ${S[step.inside].op}${S[step.inside].back ? "_backward" : ""}` : null;
  return [head(step, badge(kind), where ? el("span", {class: "where"}, where) : null),
  el("div", {class: "three"}, el("div", {}, doc(D.sources[step.source].doc), source(step)),
    middle, stack()), el("div", {id: "asked"})];
}

// ------------------------------------------------------------------------ ask a number

function close() {
  const from = state.asked && state.asked.from, box = document.getElementById("asked");
  state.asked = null; state.terms = [];
  if (box) { box.className = ""; box.replaceChildren(); }
  drawings.forEach(draw => draw());
  const back = from && document.querySelector(`[data-key="${from}"]`);
  if (back) back.focus({preventScroll: true});
}
function answer() {
  const box = document.getElementById("asked"), q = state.asked;
  if (!box || !q) return;
  const step = S[q.step], part = step.out.find(p => p.name === q.name);
  const a = array(part.array), value = valueAt(a, q.at), f = part.formula;
  const d = (checks[q.step] || []).find(d => "d" + d.name === q.name &&
    d.at.every((v, i) => v === q.at[i]));
  const rows = [[fault() && step.back ? "in the right step" : "in the step", a.dtype === "<f8" ? "float64" : "float32", num(value, 7)]];
  const b = fault();
  if (d) {
    rows.push(["the same step", "float64", num(d.value, 10)],
      ["(L(x + h) − L(x − h)) / 2h", `h = ${num(d.nudge, 1)}`, num(d.numerical, 10)],
      ["relative error", "", num(d.error, 2), d.error <= TOLERANCE]);
    if (b) {
      const error = errorOf(b.values[d.n], d);
      rows.push([`with the fault: ${b.title}`, "", num(b.values[d.n], 7)],
        ["its relative error", "", num(error, 2), error <= TOLERANCE]);
    }
  }
  box.className = "asked";
  box.replaceChildren(el("button", {class: "close", "aria-label": "close", onclick: close}, "✕"),
    el("h3", {}, `${q.name}[${q.at.join(", ")}]${part.parameter ? ` of ${part.parameter}` : ""}`),
    f ? el("div", {class: "sum"}, el("b", {}, f.text), ...terms(f, q, value)) :
      el("p", {}, "Its formula is in the docstring."),
    el("div", {}, el("table", {}, rows.map(r => el("tr", {}, el("td", {}, r[0]),
      el("td", {class: "where"}, r[1]), el("td", {class: "n"}, r[2]),
      el("td", {class: r[3] ? "ok" : "no"}, r[3] === undefined ? "" :
        r[3] ? "✓ they agree" : "✗ they do not")))),
    d || !step.back ? null : el("p", {class: "texts"}, D.unchecked ? `No finite differences: ${
      D.unchecked}.` : "Finite differences are computed of trained parameters, " +
      "for the entries within a dashed frame."),
    f ? faultNote("The sum here is the right step's.") : null));
  drawings.forEach(draw => draw());
  say(`${q.name} ${q.at.join(", ")} is ${num(value, 5)}`);
}

// All terms of a formula at one entry, as far as this file has them, and how many there are.
function products(f, at) {
  // Where each letter starts and how far it runs, here and in truth, and the name of its axis.
  const where = {0: 0}, start = {}, sizes = {}, full = {}, axis = {};
  [...f.at].forEach((l, i) => { where[l] = at[i]; });
  for (const [name, letters] of pieces(f.put + f.plus)) {
    const ref = f.refs[name];
    if (typeof ref !== "number") continue;
    [...letters].forEach((l, i) => {
      sizes[l] = Math.min(sizes[l] ?? Infinity, array(ref).shown[i]);
      start[l] = Math.max(start[l] ?? 0, array(ref).first[i]);
      full[l] = Math.max(full[l] ?? 0, array(ref).shape[i]);
      axis[l] = array(ref).axes[i];
    });
  }
  let places = [{}];
  for (const l of f.over) places = places.flatMap(p => Array.from({length: sizes[l]},
    (_, n) => ({...p, [l]: start[l] + n})));
  const fill = (expression, letters) => {
    const from = [], factor = f.times === 1 ? "" : `${num(f.times, 4)} · `;
    let product = f.times;
    const filled = put => factor + expression.replace(/(\w+)\[(\w*)\]/g, put)
      .replace(/\*/g, "·").replace(/ - /g, " − ");
    const text = filled((_, name, at) => {
      const ref = f.refs[name], index = [...at].map(l => letters[l]);
      const v = typeof ref === "number" ? valueAt(array(ref), index) : ref.number;
      product *= v;
      from.push({name, at: index});
      return v === null ? `${name}(cut)` : v < 0 ? `(${num(v, 4)})` : num(v, 4);
    });
    const named = filled((_, name, at) => at ? `${name}[${[...at].map(l => letters[l])}]` : name);
    return {text, named, from, product};
  };
  const all = places.map(place => fill(f.put, {...where, ...place}));
  return {all, plus: f.plus ? fill(f.plus, where) : null,
    many: [...f.over].reduce((n, l) => n * full[l], 1),
    over: [...f.over].map(l => axes(full[l], axis[l])).join(" × "),
    examples: [...f.over].some(l => axis[l] === "example" && sizes[l] > 1)};
}
const MANY = {query: "queries", class: "classes", in: "inputs", out: "outputs",
  "channel of the head": "channels of the head"};
const axes = (n, name) => n > 1 && MANY[name] ? `${count(n)} ${MANY[name]}` : plural(n, name);
function terms(f, q, value) {               // rows: which numbers, the numbers, their product
  const {all, plus, many, over, examples} = products(f, q.at), total = num(value, 6);
  const row = (...cells) => el("tr", {}, cells.map((content, i) => el("td", {class: i === 2 ? "n" :
    ""}, content)));
  const most = [...all].sort((x, y) => Math.abs(y.product) - Math.abs(x.product)).slice(0, 4);
  state.terms = [...most, ...plus ? [plus] : []].flatMap(t => t.from);
  if (!f.over) return [el("div", {}, `= ${all[0].named}`), el("div", {}, `= ${all[0].text}`),
    el("div", {}, `= ${total}`)];
  const added = plus ? plus.product : 0, cut = many - all.length;
  const rest = value - added - most.reduce((t, x) => t + x.product, 0);
  return [el("table", {}, most.map((t, i) => row(`${i ? "+" : "="} ${t.named}`, t.text,
    num(t.product, 4))), many > most.length ? row(`+ ${plural(many - most.length, cut ?
    "more term" : "smaller term")}`, cut ? `${count(cut)} of them are cut from this file` : "",
  num(rest, 4)) : "", plus ? row(`+ ${plus.named}`, plus.text, num(added, 4)) : "",
  row(`= ${plural(many, "term")}: ${over}`, examples ?
    `outlined: those of example ${state.example}` : "", total))];
}
function pieces(put) { return [...put.matchAll(/(\w+)\[(\w*)\]/g)].map(m => [m[1], m[2]]); }
