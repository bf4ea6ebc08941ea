// ------------------------------------------------------------------------ the address

// "#tour=4&angle=120" is a station and what is not as it begins; "#free" the free page.
function start_of(tour) {
  const set = tour ? STATIONS[tour - 1].set : {};
  return {...DEFAULTS, ...set.task ? TASKS[set.task].settings : {}, ...set, tour};
}
function address() {
  const start = start_of(S.tour);
  const q = Object.keys(DEFAULTS).filter(k => JSON.stringify(S[k]) !== JSON.stringify(start[k]))
    .map(k => `${k}=${encodeURIComponent(k === "race" ? S.race.map(r => r.join("~")).join(",") :
      k === "frozen" ? S.frozen.join(",") || "none" :
        k === "cut" ? S.cut.map(pair => pair.join("-")).join(",") || "none" : S[k])}`);
  if (S.tour) q.unshift(`tour=${S.tour}`);
  return q.length ? `#${q.join("&")}` : "#free";
}
let later = null;
function write_address(replace) {
  clearTimeout(later);
  if (location.protocol === "about:") return;              // within a notebook
  const {hash} = location;                 // a slider moves often, and a reader may go on meanwhile
  if (replace) later = setTimeout(() => location.hash === hash && location.replace(address()), 250);
  else if (address() !== (location.hash || "#")) location.hash = address();
}
function read_address() {
  const given = new URLSearchParams(location.hash.slice(1));
  const asked = given.get("tour") ?? (location.hash.length > 1 || !D.tour ? null : String(D.tour));
  const tour = STATIONS[asked - 1] ? Number(asked) : null;
  const values = start_of(tour);
  const unknown = [...given.keys()].filter(k => !(k in DEFAULTS) && k !== "free");
  notice(asked !== null && !tour ? `There is no station ${asked.slice(0, 20)}: the tour has ` +
    `${STATIONS.length}. This is the free page.` : unknown.length ? "This page does not know " +
    `“${unknown[0].slice(0, 30)}” in its address.` : "");
  for (const [k, text] of given) {
    const number = Number(text);
    if (k === "task" && Object.hasOwn(TASKS, text)) values.task = text;
    if (k === "weights" && Object.hasOwn(KINDS, text)) values.weights = text;
    if (["scale", "rate"].includes(k) && number > 0) values[k] = number;
    if (k === "angle" && number >= 0 && number <= 180) values.angle = number;
    if (k === "start" && Object.hasOwn(STARTS, text)) values.start = text;
    if (k === "follow") values.follow = text === "true";
    if (k === "beamer") values.beamer = text !== "false";
    if (k === "cut") values.cut = text.split(",").map(pair => pair.split("-").map(Number))
      .filter(([q, key]) => Number.isInteger(key) && key >= 0 && key <= q && q < 12 && q > 0);
    if (["batch", "seed", "pace"].includes(k) && number >= 0 && number < 2 ** 31)
      values[k] = Math.round(k === "batch" ? Math.min(64, Math.max(1, number)) : number);
    if (k === "frozen") values.frozen = PARTS.filter(p => text.split(",").includes(p));
    if (k === "fault" && fault_of(text)) values.fault = text;
    if (k === "tab" && ["settings", "race", "break", "game"].includes(text)) values.tab = text;
    if (k === "open" && PARTS.includes(text)) values.open = text;
    if (k === "bits" && /^[01]{10}$|^[01]{36}\.[0-2]\.[01]{12}$/.test(text)) values.bits = text;
    if (k === "look" && number >= 0 && number < 12) values.look = Math.floor(number);
    if (k === "race") values.race = text.split(",").slice(0, 3).map(r => r.split("~"))
      .filter(([kind, s]) => Object.hasOwn(KINDS, kind) && Number(s) > 0)
      .map(([kind, s, from]) => [kind, Number(s), Object.hasOwn(STARTS, from) ? from : "drawn"]);
  }
  const {settings} = TASKS[values.task];
  for (const k of ["rate", "batch"]) if (given.has("task") && !given.has(k)) values[k] = settings[k];
  if (!values.race.length) values.race = DEFAULTS.race;
  return values;
}
function notice(text) {
  by("notice").textContent = text;
  by("notice").hidden = !text;
}
addEventListener("hashchange", () => {
  if (address() !== (location.hash || "#")) set(read_address(), true);
});
