// The tour: shows a station, its guess, its acts and its verdict.

const NOTES = STATIONS.map(() => ({guess: null, runs: [], cuts: {}, busy: null}));
const station = () => STATIONS[S.tour - 1] || null;

// What a race shows, in words that follow the run.
function verdict_of({lanes, step}) {
  if (S.tab !== "race" || !step || lanes.length !== S.race.length) return "";
  const names = models.map(m => lane_name(m, true));
  const text = `${lanes.map((lane, n) => `${names[n]}: ${steps_of({lanes, step}, n)}`).join("; ")}. `;
  const reached = (kind, ...scales) => S.race.some(([k, scale], n) => k === kind && lanes[n].reached &&
    (!scales.length || scales.includes(scale)));
  const failed = S.race.some(([k, scale], n) => k === "random" && scale < 0.3 && !lanes[n].reached);
  if (!S.race.some(([kind]) => kind === "pretrained")) return text;
  return text + (reached("pretrained") && S.race.some(([kind, scale], n) => kind === "random" &&
    scale >= 0.3 && lanes[n].reached) ? failed ? "Random numbers learn as well: it is not the " +
    "reading. Numbers that are too small do not: their size matters." : "Random numbers learn as " +
    "well: it is not the reading." : running ? "" : "The curves still rise: train longer.");
}

function show_station() {
  const now = station();
  document.body.className = now ? ["tour", ...now.show.map(part => `show-${part}`)].join(" ") : "";
  by("tour").hidden = !now;
  by("task").disabled = Boolean(now);
  document.title = now ? `${S.tour}. ${now.title}` : "A transformer that trains in this page";
  arrange();
  if (!now) return;
  const notes = NOTES[S.tour - 1];
  by("place").firstElementChild.textContent = `${S.tour} of ${STATIONS.length}`;
  by("question").textContent = now.title;
  by("story").textContent = now.text;
  by("more").open = false;
  by("more").lastElementChild.textContent = now.more;
  by("acts").replaceChildren(...now.acts.map(([label, act]) => el("button", {class: "main",
    onclick: async () => {
      if (notes.busy) return;
      await act(notes);
      show_judged();
      dirty = true;
    }}, label)));
  by("back").disabled = S.tour === 1;
  by("next").textContent = S.tour < STATIONS.length ? "Next →" : "The free page →";
  if (now.show.includes("letters")) show_letters();
  if (now.show.includes("points") && notes.shown) show_points();
  by("points").hidden = !notes.shown;
  show_guess();
  show_judged();
}

function show_guess() {
  const {options} = station(), notes = NOTES[S.tour - 1];
  by("guess").hidden = !options.length;
  by("guess").replaceChildren(el("b", {id: "ask"}, "Your guess: "), ...options.map(
    (text, n) => el("button", {"aria-pressed": String(notes.guess === n), onclick: () => {
      notes.guess = n;
      show_guess();
      by("guess").querySelectorAll("button")[n].focus();
      show_judged();
    }}, text)));
  by("guess").setAttribute("aria-labelledby", "ask");
}

function show_judged() {
  const now = station();
  if (!now) return;
  const notes = NOTES[S.tour - 1], right = now.guess ? now.guess(notes) : null;
  let text = !notes.busy ? now.judge(notes) : latest && latest.speed && latest.speed < 30 ?
    "Training … This machine is slow, so it takes a while." : "Training …";
  if (!notes.busy && text && right !== null && notes.guess !== null)
    text = `${notes.guess === right ? "You guessed right." : "You guessed otherwise."} ${text}`;
  if (by("judged").textContent !== text) by("judged").textContent = text;
}

function go_to(tour) {
  if (running) run(0);
  NOTES.forEach(notes => { notes.busy = null; });
  flipped = null;
  set({...start_of(STATIONS[tour - 1] ? tour : null), seed: S.seed});
  by(STATIONS[tour - 1] ? "question" : "task").focus({preventScroll: true});
  scrollTo({top: 0});
}
by("next").onclick = () => go_to(S.tour + 1);
by("back").onclick = () => go_to(S.tour - 1);
by("skip").setAttribute("href", "#free");
by("restart").setAttribute("href", "#tour=1");
