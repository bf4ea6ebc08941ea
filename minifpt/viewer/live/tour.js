// The tour: shows a station, its guess, its acts and its verdict.

const NOTES = STATIONS.map(() => ({guess: null, runs: [], cuts: {}, busy: null, limit: null, next: 0}));
const WHY = 7;                             // the first station of the second part
const station = () => STATIONS[S.tour - 1] || null;

// Where the numbers of a model went beyond all bounds; from there on it does not change.
function lost() {
  const {lanes} = latest || {lanes: []};
  const n = lanes.findIndex(lane => lane.lost);
  return n < 0 ? "" : `Step ${count(lanes[n].lost)}: the loss${lanes.length > 1 ? ` of “${lane_name(models[n],
    true)}”` : ""} is not finite. Start again with a smaller learning rate or initialisation scale.`;
}
// What a race shows, in words that follow the run.
function verdict_of({lanes, step}) {
  if (S.tab !== "race" || !step || lanes.length !== S.race.length) return "";
  const random = lanes.filter((_, n) => S.race[n][0] === "random" && S.race[n][1] >= 0.3);
  const read = lanes.filter((_, n) => S.race[n][0] === "pretrained");
  return `Steps to 95 % right: ${lanes.map(({reached}, n) => `${lane_name(models[n], true)} ${
    reached ? count(reached) : `not in ${count(step)}`}`).join("; ")}. ` + (![read, random].every(all => all.length &&
    all.every(lane => lane.reached)) ? "" : "Random numbers learn it too: the reading is not needed. One race does not " +
    "tell which is faster.");
}

function show_station() {
  const now = station(), zoom = Math.max(1.15, innerWidth / 1280);
  document.body.style.zoom = S.beamer ? zoom : "";
  document.body.className = now ? ["tour", "fresh", ...now.show.map(part => `show-${part}`)].join(" ") : "";
  by("tour").hidden = !now;
  by("task").disabled = Boolean(now);
  document.title = now ? `${S.tour}. ${now.title}` : "A transformer that trains in this page";
  arrange();
  if (now) by("more").append(by("looking"));
  else by("cuts").before(by("looking"));
  by("looking").hidden = Boolean(now) && !now.show.includes("flow");
  if (!now) return;
  by("restart").setAttribute("href", `#tour=${S.tour}`);
  const notes = NOTES[S.tour - 1];
  by("place").replaceChildren(...STATIONS.flatMap(({title}, n) => [n + 1 === WHY && el("span", {}, "Why?"),
    el("button", {title, "aria-label": `${n + 1}. ${title}`, "aria-current": n + 1 === S.tour && "step",
      onclick: () => go_to(n + 1)}, String(n + 1))]).filter(Boolean));
  by("question").textContent = now.title;
  by("story").textContent = now.text;
  by("more").open = false;
  by("more").querySelector("p").textContent = now.more;
  by("acts").replaceChildren(...now.acts.map(([, act], n) => el("button", {
    onclick: async () => {
      if (notes.busy) return;
      notes.next = Math.max(notes.next, n + 1);
      const done = act(notes);
      show_judged();
      if (innerWidth <= 900) by("acts").scrollIntoView();    // and with them what they change
      await done;
      dirty = true;
    }})));
  by("back").disabled = S.tour === 1;
  by("next").textContent = S.tour === STATIONS.length ? "The free page →" : S.tour + 1 === WHY ? "Why can it look? →" :
    "Next →";
  if (now.show.includes("letters")) show_letters();
  if (now.show.includes("links")) show_links();
  if (now.show.includes("points")) show_points(notes.shown);
  by("guess").hidden = !now.options.length;
  by("guess").replaceChildren(by("ask"), ...now.options.map((text, n) => el("button", {
    onclick: () => {
      notes.guess = n;
      show_judged();
    }}, text)));
  show_judged();
}
const table_element = ([head, ...rows]) => el("table", {}, el("tr", {}, head.map(text => el("th", {scope: "col"}, text))),
  rows.map(([name, ...cells]) => el("tr", {}, el("th", {scope: "row"}, name), cells.map(text => el("td", {}, text)))));
function show_judged() {
  const now = station();
  if (!now) return;
  const notes = NOTES[S.tour - 1], right = now.guess && !notes.runs.some(r => r.stopped) ? now.guess(notes) : null;
  const wrong = stopped || lost(), busy = !wrong && notes.busy;
  const said = (wrong || busy ? [wrong || `${busy} …`] : [now.judge(notes)].flat(1)).filter(part => part.length);
  now.acts.forEach(([label], n) => {
    const button = by("acts").children[n], words = typeof label === "string" ? label : label(notes);
    if (button.textContent !== words) button.textContent = words;
    button.className = n === Math.min(notes.next, now.acts.length - 1) ? "main" : "";
    button.setAttribute("aria-disabled", String(Boolean(busy)));
  });
  if (now.show.includes("strip")) show_strip(notes.runs.length > 0 && !busy);
  by("guess").querySelectorAll("button").forEach((b, n) =>
    b.setAttribute("aria-pressed", String(notes.guess === n)));
  if (!busy && said.length && right !== null && notes.guess !== null)
    said.unshift(notes.guess === right ? "You guessed right. " : "That was not your guess. ");
  const key = JSON.stringify(said);
  if (by("judged").dataset.key !== key) {
    by("judged").dataset.key = key;
    by("judged").replaceChildren(...said.map(part => typeof part === "string" ? part : table_element(part)));
  }
  by("busy").hidden = !busy;               // how far it is, where that is known
  const bar = by("busy").firstElementChild, {step} = latest || {step: 0};
  if (!busy) return;
  if (notes.limit) Object.assign(bar, {max: notes.limit, value: step});
  else bar.removeAttribute("value");
  by("busy").lastElementChild.textContent = !notes.limit ? "" : `step ${count(step)} of at most ${count(notes.limit)}` +
    (latest?.speed && latest.speed < 30 ? ": this machine is slow" : "");
}

// Where to go on: on the site these are links, in a file alone the commands.
function show_links() {
  by("links").replaceChildren(...[
    ["Lesson 0", "The same in Python, with a larger model, and a race of your own.", "lessons/00_a_language_model_learns_xor.html",
      "minifpt lessons"],
    ["One training step", "Each operation, forward and back, number by number.", "pages/step.html", "minifpt steps bit-xor"],
    ["Results", "What was measured, with how many runs, and what it does not show.", "RESULTS.html", "RESULTS.md"],
    ["The code", "Plain NumPy; each backward pass is written by hand.", "docs/api/index.html", "minifpt/functional.py"],
  ].map(([title, text, page, command]) => el(D.site ? "a" : "div", D.site ? {href: D.site + page, target: "_top"} : {},
    el("b", {}, title), el("span", {}, text), D.site ? null : el("code", {}, command))));
}

function go_to(tour) {
  const start = start_of(STATIONS[tour - 1] ? tour : null);
  set({...start, beamer: S.beamer, bits: start.task === S.task ? S.bits : null});
}
by("next").onclick = () => go_to(S.tour + 1);
by("back").onclick = () => go_to(S.tour - 1);
for (const [id, to] of [["skip", "#free"], ["restart", "#tour=1"]]) {
  by(id).setAttribute("href", to);
  by(id).onclick = e => location.protocol !== "about:" ||    // in a frame links are the notebook's
    (e.preventDefault(), go_to(id === "skip" ? null : S.tour || 1));
}
