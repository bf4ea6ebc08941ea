// ------------------------------------------------------------------------ the ribbon

function statusOf(i) {
  if (!fault() || !S[i].back) return "";
  return fault().first === i ? "first" : i in fault().wrong ? "wrong" : "right";
}
function cell(i, extra = "") {
  const s = S[i], kind = kindOf(s), n = frameOf[i], status = statusOf(i);
  const when = n === state.at ? "now" : n < state.at ? "done" : "todo";
  const remark = {first: "; the first wrong gradient", wrong: "; wrong gradient",
    right: "; gradient agrees"}[status] || "";
  return el("button", {
    class: `cell ${kind} ${when} ${status} ${s.inside !== null ? "inner" : ""} ${extra} ` +
      (state.all || path.includes(n) ? "" : "aside"),
    tabindex: n === state.at ? 0 : -1, "data-step": i, title: `${words(s)}: ${s.name}, ${KINDS[kind]}${remark}`,
    "aria-label": `${words(s)}, ${KINDS[kind]}${remark}`,
    "aria-current": n === state.at ? "step" : null, onclick: () => go(n)},
  el("span", {}, status === "first" ? "✗" : SHORT[s.op] || s.op));
}
// Whether a part of a block ends with step i, so that a sum follows it.
function adds(i, next) {
  const part = k => k === undefined ? null : S[k].layer.slice(S[k].fold.length + 1).split(".")[0];
  return S[i].fold !== null && ["attn", "mlp"].includes(part(i)) && part(next) !== part(i);
}
function ribbon() {
  const nav = document.getElementById("ribbon"), now = frames[state.at];
  const here = now.kind === "step" ? groupOf(now.i) : null;
  const end = (top, n, title, low, m, lowTitle) => el("div", {class: "group end"},
    el("span", {class: "name"}, ""), el("div", {class: "column"},
      el("button", {class: `cell ${state.at === n ? "now" : "done"}`, title,
        tabindex: state.at === n ? 0 : -1, onclick: () => go(n)}, top),
      m === undefined ? null : el("button", {class: `cell trained ${state.at === m ? "now" :
        state.at > m ? "done" : "todo"}`, title: lowTitle, tabindex: state.at === m ? 0 : -1,
      onclick: () => go(m)}, low)));
  const parts = [end("start →", 0, "What goes in", "← Adam", frameOf.adam, "Adam: the update")];
  for (const g of groups) {
    const back = g.steps.map(i => S[i].partner).filter(i => i !== null);
    const open = g.fold === null || g === here || state.open.has(g.fold);
    const label = g.fold === null ? "" : block_name(g.fold);
    if (!open) {
      const span = (list, arrow) => {
        const ns = list.map(i => frameOf[i]);
        const bad = list.find(i => statusOf(i) === "first");
        const wrong = list.filter(i => statusOf(i) === "wrong").length;
        return el("button", {class: `cell code ${Math.min(...ns) > state.at ? "todo" : "done"} ` +
          (bad !== undefined ? "first" : wrong ? "wrong" : ""), tabindex: -1,
        title: `${g.fold}: ${list.length} operations${arrow === "←" ? ", backward" : ""}` +
          (wrong || bad !== undefined ? `, ${wrong + (bad !== undefined)} wrong` : ""),
        style: `--code:${barcode(list)}`, onclick: () => go(Math.min(...ns))}, el("span", {},
          bad !== undefined ? `✗ ${wrong + 1}` : wrong ? `× ${wrong}` : `${list.length} ${arrow}`));
      };
      parts.push(el("div", {class: "group folded"}, el("button", {class: "name", title: "Unfold",
        "data-key": g.fold, onclick: () => { state.open.add(g.fold); render(); }}, `▸ ${label}`),
      el("div", {class: "column"}, span(g.steps, "→"), back.length ? span(back, "←") :
        el("div", {class: "cell none", title: "Nothing runs back here"}, "–"))));
      continue;
    }
    const columns = g.steps.flatMap((i, n) => [el("div", {class: "column"}, cell(i),
      S[i].partner !== null ? cell(S[i].partner) : el("div", {class: "cell none",
        title: "Nothing runs back here: nothing below learns"}, "–")),
    ...adds(i, g.steps[n + 1]) ? [el("div", {class: "column plus", title: "A sum: what this part " +
      "computed is added to what went into it; going back, both gradients add up"}, "+")] : []]);
    parts.push(el("div", {class: "group", style: `flex-grow:${g.steps.length};flex-basis:` +
      `${g.steps.length * 31}px;max-width:${g.steps.length * 98}px`}, g.fold === null ? el("span",
        {class: "name"}) : el("button", {
      class: "name", title: "Fold", "data-key": g.fold, onclick: () => {
        state.open.delete(g.fold); if (g === here) go(frameOf[g.steps[0]] - 1); else render();
      }}, `▾ ${label}`), el("div", {class: "columns"}, columns)));
  }
  const n = frameOf.loss;
  parts.push(el("div", {class: "last"}, el("div", {class: "group end"},   // it stays in sight
    el("span", {class: "name"}, ""),
    el("button", {class: `cell turn ${state.at === n ? "now" : state.at > n ? "done" : "todo"}`,
      title: "The loss, where it turns round", tabindex: state.at === n ? 0 : -1,
      onclick: () => go(n)}, "loss"))));
  nav.replaceChildren(...parts);
  nav.classList.toggle("over", nav.scrollWidth > nav.clientWidth + 1);
  const current = nav.querySelector(".now");
  if (current && !current.closest(".last")) {
    const box = current.getBoundingClientRect();
    if (box.left < 0 || box.right > window.innerWidth - 120)
      nav.scrollLeft += box.left - window.innerWidth / 2;
  }
}

const STRIPES = {trained: "var(--trained)", frozen: "var(--stripe)", plain: "var(--paper)"};
function barcode(list) {                    // a folded block: a stripe for each operation
  const stops = list.map((i, n) => `${STRIPES[kindOf(S[i])]} 0 ${100 * (n + 1) / list.length}%`);
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

// ------------------------------------------------------------------------ breaking it

function breaks() {
  const b = fault(), parts = [el("b", {id: "bt"}, "Break it:")];
  D.breaks.forEach((b, n) => parts.push(el("button", {role: "switch", id: `break${n}`,
    "aria-checked": String(state.broken === n), disabled: b.first === null,
    title: b.first === null ? (S.some(s => s.back && s.op === b.op) ?
      "this fault changes no gradient of this step" : `no ${b.op} runs back in this step`) :
      `${b.op}_backward: ${b.instead}`, onclick: () => toggle(n)}, b.title)));
  if (b) parts.push(el("p", {"aria-live": "polite"}, "The fault: ", el("b", {}, b.title),
    ` in ${b.op}_backward. ${b.why}`, el("br"), "First red: ", el("b", {class: "no"},
      `✗ ${S[b.first].name}, backward`), `. ${plural(Object.keys(b.wrong).length,
      "backward operation")} of ${S.length - forward.length} give a wrong gradient: they run the ` +
      "faulty line, or receive a wrong gradient. The button above mends it and goes back to where " +
      "you were."));
  document.getElementById("breaks").replaceChildren(...parts);
}
function toggle(n) {
  const mends = state.broken === n;
  if (D.breaks[n].first === null) return;
  if (state.broken === null) state.from = state.at;
  state.broken = mends ? null : n;
  go(mends ? state.from : frameOf[D.breaks[n].first]);
  document.getElementById(`break${n}`).focus();
}
