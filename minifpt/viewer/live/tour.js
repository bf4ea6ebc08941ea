// The tour: shows a station, its guess, its acts and its verdict.

const NOTES = STATIONS.map(() => ({guess: null, runs: [], cuts: {}, busy: null}));
const station = () => STATIONS[S.tour - 1] || null;

// Where the numbers of a model went beyond all bounds; from there on it does not change.
function lost() {
  const {lanes} = latest || {lanes: []};
  const n = lanes.findIndex(lane => lane.lost);
  return n < 0 ? "" : `Step ${count(lanes[n].lost)}: the loss${lanes.length > 1 ? ` of “${lane_name(models[n],
    true)}”` : ""} is not finite. Start again with a smaller learning rate or initialisation scale.`;
}
// What races show, {lanes, step} each, in words that follow the run.
function verdict_of(races) {
  const {lanes, step} = races[0], several = races.length > 1 ? ` in ${races.length} draws` : "";
  if (S.tab !== "race" || !step || lanes.length !== S.race.length) return "";
  const times = lanes.map((_, n) => races.map(r => r.lanes[n].reached));
  const [read, random, small] = [s => s === null, s => s >= 0.3, s => s !== null && s < 0.3].map(test => times.filter((_, n) =>
    S.race[n][0] === "random" ? test(S.race[n][1]) : S.race[n][0] === "pretrained" && test(null)).flat());
  const text = `Steps to 95 % right${several}: ${times.map((all, n) => `${lane_name(models[n], true)} ${
    all.map(r => r ? count(r) : `not in ${count(step)}`).join(", ")}`).join("; ")}. `;
  return text + (![read, random].every(all => all.length && all.every(Boolean)) ? "" : "Random numbers learn it " +
    "too: the reading is not needed." + (small.length && !small.some(Boolean) ?
    " Numbers that are too small need more steps. Three draws do not tell which of the others is faster." : ""));
}

function show_station() {
  const now = station(), zoom = Math.max(1.15, innerWidth / 1280);
  document.body.style.zoom = S.beamer ? zoom : "";
  document.body.className = now ? ["tour", "fresh", ...now.show.map(part => `show-${part}`)].join(" ") : "";
  by("tour").hidden = !now;
  by("task").disabled = Boolean(now);
  document.title = now ? `${S.tour}. ${now.title}` : "A transformer that trains in this page";
  arrange();
  if (!now) return;
  by("restart").setAttribute("href", `#tour=${S.tour}`);
  const notes = NOTES[S.tour - 1];
  by("place").firstElementChild.textContent = `${S.tour} of ${STATIONS.length}`;
  by("question").textContent = now.title;
  by("story").textContent = now.text;
  by("more").open = false;
  by("more").lastElementChild.textContent = now.more;
  by("acts").replaceChildren(...now.acts.map(([, act]) => el("button", {class: "main",
    onclick: async () => {
      if (notes.busy) return;
      const done = act(notes);
      show_judged();
      if (innerWidth <= 900) by("acts").scrollIntoView();    // and with them what they change
      await done;
      dirty = true;
    }})));
  by("back").disabled = S.tour === 1;
  by("next").textContent = S.tour < STATIONS.length ? "Next →" : "The free page →";
  if (now.show.includes("letters")) show_letters();
  if (now.show.includes("points")) show_points(notes.shown);
  by("guess").hidden = !now.options.length;
  by("guess").replaceChildren(by("ask"), ...now.options.map((text, n) => el("button", {
    onclick: () => {
      notes.guess = n;
      show_judged();
    }}, text)));
  show_judged();
}
function show_judged() {
  const now = station();
  if (!now) return;
  const notes = NOTES[S.tour - 1], right = now.guess && !notes.runs.some(r => r.stopped) ? now.guess(notes) : null;
  let text = stopped || lost() || (!notes.busy ? now.judge(notes) : `${notes.busy} …` + (latest && latest.speed &&
    latest.speed < 30 ? " This machine is slow, so it takes a while." : ""));
  now.acts.forEach(([label], n) => {
    const button = by("acts").children[n], words = typeof label === "string" ? label : label(notes);
    if (button.textContent !== words) button.textContent = words;
    button.setAttribute("aria-disabled", String(Boolean(notes.busy)));
  });
  by("guess").querySelectorAll("button").forEach((b, n) =>
    b.setAttribute("aria-pressed", String(notes.guess === n)));
  if (!notes.busy && text && right !== null && notes.guess !== null)
    text = `${notes.guess === right ? "You guessed right." : "You guessed otherwise."} ${text}`;
  if (by("judged").textContent !== text) by("judged").textContent = text;
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
