// Looking into the model: cut a line of attention, the form of a head, letters.

// ------------------------------------------------------------------------ cuts

const is_cut = (query, key) => S.cut.some(([q, k]) => q === query && k === key);
function cut_line(query, key) {            // or mend it; a token sees one token at least
  const cut = is_cut(query, key) ? S.cut.filter(([q, k]) => q !== query || k !== key) :
    [...S.cut, [query, key]].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  if (cut.filter(([q]) => q === query).length <= query) set({cut}, true);
}
// Each answer's accuracy over all inputs, whole and with the cuts, by the worker that checks.
async function measure_cuts() {
  cut_table = null;
  if (!S.cut.length || !latest) return;
  const {cut} = S, {step} = latest;
  const {before, after} = await ask_about(shown, {kind: "cut", cuts: cut}, "cut");
  if (cut === S.cut) cut_table = {step, before, after};
  dirty = true;
}
// Where the cuts matter: the answers that lose, as text, and the least of the others.
function losses(task) {
  const first = task.tokens - task.output_tokens, {before, after} = cut_table;
  const falls = before.map((b, i) => b - after[i] > 0.02);
  const others = after.filter((_, i) => !falls[i]);
  return {falls: before.flatMap((b, i) => falls[i] ? [`${task.names[first + i]} from ` +
    `${percent(b)} to ${percent(after[i])}`] : []), least: others.length ? Math.floor(100 * Math.min(...others)) / 100 : 1};
}
function show_cuts(task) {
  const box = by("cuts"), key = JSON.stringify([S.task, S.look, S.cut, cut_table]);
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const names = task.names, total = S.task === "bit-memory" ? "512 inputs" : "all 1,024 inputs";
  refill(box, [S.look !== null && S.look < task.tokens && el("p", {},
    `Cut what ${names[S.look]} sees: `, names.slice(0, S.look + 1).map((name, k) => el("button", {
      "aria-pressed": String(is_cut(S.look, k)), "aria-label": `${names[S.look]} sees ${name}: cut`,
      onclick: () => cut_line(S.look, k)}, name))),
  S.cut.length > 0 && el("p", {}, "Cut now: ", S.cut.map(([q, k]) => el("button", {
    class: "mend", title: "mend it", onclick: () => cut_line(q, k)},
  `${names[q]} ✂ ${names[k]}: mend`))),
  S.cut.length > 0 && el("p", {}, cut_table ? `Accuracy over ${total} after ` +
    `${count(cut_table.step)} steps, whole → cut: ` + cut_table.before.map((b, i) =>
      `${names[task.tokens - task.output_tokens + i]} ${percent(b)} → ` +
      percent(cut_table.after[i])).join("; ") : running ? "Pause to measure." : "measuring …"),
  ]);
}

// ------------------------------------------------------------------------ the form of a head

const angle_slider = slider("angle", "angle between frozen queries and keys", 0, 180, 5,
  S.angle, v => `${v}°`, angle => set({angle}, true));
let form_numbers = null;
const form_height = () => station() && innerWidth > 900 ? 230 : 150;
function show_forms() {
  const {kind, scale, start} = models[shown], box = by("forms");
  box.hidden = kind !== "turned";
  if (box.hidden) return;
  const key = JSON.stringify([scale, S.angle, S.seed, S.task]);
  if (!form_numbers || form_numbers.key !== key) {
    const model = E.make_model(D.config, TASKS[S.task], {...trunk, kind, scale, angle: S.angle},
      S.seed), w = model.parameters["trunk.h.0.attn.c_attn.weight"].data;
    form_numbers = {key, keys: w.filter((_, i) => Math.floor(i / 64) % 3 === 1),
      values: E.eigen(E.symmetric_form(model)).values};
  }
  const place = S.tab !== "race" && station()?.show.includes("forms") ? by("acts") : box;
  if (angle_slider.parentNode !== place) place.insertBefore(angle_slider, place === box ? by("form") : null);
  const input = by("angle"), positive = form_numbers.values.filter(v => v > 1e-9).length;
  if (document.activeElement !== input) input.value = S.angle;
  input.setAttribute("aria-valuetext", `${S.angle}°`);
  by("angle-value").textContent = `${S.angle}°`;
  by("form").setAttribute("aria-label", `${positive} of 64 bars are orange: eigenvalues above 0`);
  if (layout && by("form").dataset.key !== `${key}${layout.width}`) {
    by("form").dataset.key = `${key}${layout.width}`;
    draw_form(by("form"), form_numbers, [box.clientWidth, form_height()]);
  }
}

// ------------------------------------------------------------------------ letters

// What the pretrained trunk expects after a text, by its own table of letters: [letter, share].
function expects(text) {
  const model = {config: D.config, parameters: Object.fromEntries(Object.entries(trunk.arrays).map(
    ([n, a]) => [`trunk.${n}`, {data: a, trainable: false}])), cuts: []};
  for (const name of ["input", "output"])  // the table stands in their place
    model.parameters[`${name}.weight`] = {data: trunk.arrays["wte.weight"], trainable: false};
  const ids = Int32Array.from([...text].map(c => Math.min(255, c.charCodeAt(0))));
  ids.shape = [1, ids.length];
  const call = (op, name, inputs) => name === "input" ? E.embedding(...inputs) :
    name === "output" ? E.unembedding(...inputs) : op(...inputs);
  const [logits] = E.forward({...model, output_tokens: 1}, ids, call);
  return Array.from(E.softmax(E.reshape(logits, [1, logits.length]))[0], (p, i) => [
    String.fromCharCode(i), p]).sort((a, b) => b[1] - a[1]);
}
const spelled = letter => ({" ": "space", "\n": "new line"})[letter] || letter;
const LETTERS = 12;                        // that it sees, as many positions as are stored
let letters = "the old wom";
function show_letters() {
  if (!trunk.arrays["wte.weight"])
    return by("letters").replaceChildren("The trunk of this page has read nothing.");
  const bars = el("ol"), put = text => {
    letters = text;
    dirty = true;
    bars.replaceChildren(...(text ? expects(text.slice(-LETTERS)) : []).slice(0, 7).map(
      ([letter, p]) => el("li", {}, el("button", {title: "write it", onclick: () => {
        input.value += letter;
        put(input.value);
        bars.querySelector("button").focus();              // its own button is gone
      }}, spelled(letter)), el("i", {style: `width:${60 * p}%`}), ` ${percent(p)}`)));
  };
  const input = el("input", {id: "text", value: letters, maxlength: 60, autocomplete: "off",
    "aria-label": "letters", oninput: e => put(e.target.value)});
  by("letters").replaceChildren(el("label", {}, "letters in ", input),
    el("p", {class: "note"}, "It sees the last twelve. What it expects next; press one to write it:"), bars);
  put(letters);
}

// ------------------------------------------------------------------------ races and heads

// Twenty races that were run before, a column each: the steps of both models, joined by a line in
// the colour of the one that needed fewer.
function show_strip(shown) {
  const box = by("strip"), key = `${shown}${S.seed}`;
  if (box.dataset.key === key) return;
  box.dataset.key = key;
  const x = n => 66 + 27 * n, y = steps => 216 - 0.15 * steps, at = shown ? S.seed : null;
  const mark = {read: (h, v) => `<circle class="read" cx="${h}" cy="${v}" r="5.5"/>`, random: (h, v) =>
    `<path class="random" d="M${h} ${v - 7}l7 7-7 7-7-7z"/>`};
  box.innerHTML = `<svg viewBox="0 0 620 262" role="img" aria-label="Steps to 95 % right in twenty races${!shown ? "" :
    `: read novels ${READ_STEPS.join(", ")}; random ${RANDOM_STEPS.join(", ")}`}">` + [0, 400, 800, 1200].map(v =>
    `<path class="line" d="M50 ${y(v)}H600"/><text x="44" y="${y(v) + 4}" class="end">${count(v)}</text>`).join("") +
    `<text x="50" y="16">steps to 95 % right</text>${mark.read(340, 12)}<text x="352" y="16">read novels</text>` +
    `${mark.random(500, 12)}<text x="512" y="16">random</text>` +
    (at === null ? "" : `<rect x="${x(at) - 12}" y="24" width="24" height="210" rx="6"/>`) + RANDOM_STEPS.map((steps, n) =>
    (!shown ? "" : `<path class="joined ${steps < READ_STEPS[n] ? "random" : "read"}" d="M${x(n)} ${y(steps)}V${
      y(READ_STEPS[n])}"/>${mark.read(x(n), y(READ_STEPS[n]))}${mark.random(x(n), y(steps))}`) +
    `<text x="${x(n)}" y="234" class="middle${n === at ? " now" : n % 5 < 4 ? " few" : ""}">${n + 1}</text>`).join("") +
    `<text x="325" y="254" class="middle">${shown ? `random is ahead in ${RANDOM_AHEAD} of twenty races` :
      "twenty races, run before: run one to see them"}</text></svg>`;
}

const TRAINED_ON = {"minigpt-language": "language", "minigpt-images": "images",
  "minigpt-bits": "bit memory"};
function show_points(shown) {              // the band of random heads, and a point for each head
  const {traces, random: [mean, deviation]} = D.heads, x = v => 30 + 80 * (v + 1);
  by("points").innerHTML = `<svg viewBox="0 0 420 300" role="img" aria-label="Each head's trace">` +
    `<rect x="${x(mean - 2 * deviation)}" y="20" width="${320 * deviation}" height="240"/>` +
    `<text x="${x(mean)}" y="14" class="middle">random heads</text>` +
    Object.entries(traces).map(([name, rows], n) => `<text x="6" y="${40 + 80 * n}">${TRAINED_ON[name]}` +
      "</text>" + (shown ? rows.flat().sort((a, b) => a - b) : []).map((v, i) => `<circle class="${Math.abs(v - mean) <= 2 * deviation ? "" : v > mean ? "plus" : "minus"}" cx="${x(v)}" cy="${32 + 80 * n + i % 6 * 9}" ` +
      "r=\"3\"/>").join("")).join("") +
    [-1, 0, 1, 2, 3].map(v => `<text x="${x(v)}" y="276" class="middle">${v}</text>`).join("") +
    "<text x=\"210\" y=\"294\" class=\"middle\">← away from likeness; looks for likeness →</text></svg>";
}
