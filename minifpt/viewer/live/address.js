// ------------------------------------------------------------------------ the address

// "#tour=4&angle=120" is a station and what is not as it begins; "#free" the free page.
function start_of(tour) {
  const set = tour ? STATIONS[tour - 1].set : {};
  return {...DEFAULTS, ...set.task ? TASKS[set.task].settings : {}, ...set, tour};
}
// How a setting is written in the address, if not as String does it.
const WRITE = {race: race => race.map(r => r.join("~")).join(","), frozen: parts => parts.join(",") || "none",
  cut: cut => cut.map(pair => pair.join("-")).join(",") || "none"};
const written = (k, v) => (WRITE[k] || String)(v);
// How it is read: undefined where the page cannot use the text.
const one_of = list => text => list.includes(text) ? text : undefined;
const between = (least, most, round = v => v) => text => {
  const v = text.trim() ? round(Number(text)) : NaN; return v >= least && v <= most ? v : undefined; };
const whole = (least, most) => between(least, most, Math.round);
const READ = {task: one_of(Object.keys(TASKS)), weights: one_of(Object.keys(KINDS)),
  start: one_of(Object.keys(STARTS)), fault: one_of(FAULTS.map(f => f.id)),
  tab: one_of(["settings", "race", "break"]), rate: between(Number.MIN_VALUE, Number.MAX_VALUE),
  scale: between(Number.MIN_VALUE, Number.MAX_VALUE), angle: between(0, 180), batch: whole(1, 1024),
  seed: whole(0, 2 ** 31 - 1), pace: whole(0, 2 ** 31 - 1), look: between(0, 11, Math.floor),
  tour: text => whole(1, STATIONS.length)(text), beamer: text => ["true", "", "false"].includes(text) ? text !== "false" : undefined,
  frozen: text => PARTS.filter(p => text.split(",").includes(p)),
  bits: text => /^[01]{10}$|^[01]{36}\.[0-2]\.[01]{12}$/.test(text) ? text : undefined,
  cut: text => text.split(",").map(pair => pair.split("-").map(Number)).reduce((cut, [q, key]) =>
    ![q, key].every(Number.isInteger) || key < 0 || key > q || q > 11 || cut.some(([a, b]) => a === q &&
    b === key) || cut.filter(([a]) => a === q).length === q ? cut : [...cut, [q, key]], []),
  race: text => {
    const race = text.split(",").slice(0, 3).map(r => r.split("~"))
      .filter(([kind, s = ""]) => READ.weights(kind) && READ.scale(s))
      .map(([kind, s, from]) => [kind, Number(s), READ.start(from) || "drawn"]);
    return race.length ? race : undefined;
  }};
// Whether a setting, or an entry of a list, is not used.
const is_unread = (k, text) => {
  const value = read(k, text);
  return value === undefined || Array.isArray(value) && text !== "none" && value.length !== text.split(",").length;
};
const read = (k, text) => !Object.hasOwn(READ, k) ? undefined :
  text === "null" && DEFAULTS[k] === null ? null : READ[k](text);
function address() {
  const start = start_of(S.tour);
  const q = Object.keys(DEFAULTS).filter(k => JSON.stringify(S[k]) !== JSON.stringify(start[k]))
    .map(k => `${k}=${encodeURIComponent(written(k, S[k]))}`);
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
  const entries = [...given].filter(([k]) => k !== "tour" && k !== "free");
  const wrong = entries.find(([k, text]) => is_unread(k, text));
  notice(asked !== null && !tour ? `There is no station ${asked.slice(0, 20)}: the tour has ` +
    `${STATIONS.length}. This is the free page.` : wrong ? "This page cannot use " +
    `“${(READ[wrong[0]] ? wrong.join("=") : wrong[0]).slice(0, 30)}” of its address.` : "");
  for (const [k, text] of entries) if (read(k, text) !== undefined) values[k] = read(k, text);
  const {settings, tokens} = TASKS[values.task];
  for (const k of ["rate", "batch"]) if (given.has("task") && !given.has(k)) values[k] = settings[k];
  values.cut = values.cut.filter(([query]) => query < tokens);
  return values;
}
const notice = text => Object.assign(by("notice"), {textContent: text, hidden: !text});
addEventListener("hashchange", () => address() !== (location.hash || "#") && set(read_address(), true));
