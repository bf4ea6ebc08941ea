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
// What a race shows, in words that follow the run.
function verdict_of({lanes, step}) {
  if (S.tab !== "race" || !step || lanes.length !== S.race.length) return "";
  const names = models.map(m => lane_name(m, true));
  const text = `${lanes.map((lane, n) => `${names[n]}: ${steps_of({lanes, step}, n)}`).join("; ")}. `;
  const of = test => lanes.filter((_, n) => test(...S.race[n])).map(lane => lane.reached);
  const [read] = of(kind => kind === "pretrained"), small = of((kind, s) => kind === "random" && s < 0.3);
  const times = Math.min(...of((kind, s) => kind === "random" && s >= 0.3).filter(r => r)) / read;
  if (read === undefined) return text;
  return text + (read && Number.isFinite(times) ? `Random numbers learn it too${times > 1.15 ?
    `, here in ${times.toFixed(1)} times the steps` : times < 0.85 ? ", here in fewer steps" : ""}${
    times > 1.15 || times < 0.85 ? " (may be luck: another start can turn it)" : ""}: the ` +
    `reading is not needed.${small.includes(null) ? " Numbers that are too small did not: their " +
    "size matters." : ""}` : running || lanes.every(l => l.reached) ? "" : "Not all have 95 %: train longer.");
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
  set({...start, seed: S.seed, beamer: S.beamer, bits: start.task === S.task ? S.bits : null});
}
by("next").onclick = () => go_to(S.tour + 1);
by("back").onclick = () => go_to(S.tour - 1);
for (const [id, to] of [["skip", "#free"], ["restart", "#tour=1"]]) {
  by(id).setAttribute("href", to);
  by(id).onclick = e => location.protocol !== "about:" ||    // in a frame links are the notebook's
    (e.preventDefault(), go_to(id === "skip" ? null : S.tour || 1));
}
