// ------------------------------------------------------------------------ the address

function address() {
  const q = Object.keys(DEFAULTS).filter(k => JSON.stringify(S[k]) !== JSON.stringify(DEFAULTS[k]))
    .map(k => `${k}=${encodeURIComponent(k === "race" ? S.race.map(r => r.join("~")).join(",") :
      k === "frozen" ? S.frozen.join(",") || "none" : S[k])}`);
  return q.length ? `#${q.join("&")}` : "#";
}
let later = null;
function write_address(replace) {
  clearTimeout(later);
  if (replace) later = setTimeout(() => location.replace(address()), 250);  // a slider moves often
  else if (address() !== (location.hash || "#")) location.hash = address();
}
function read_address() {
  const values = {...DEFAULTS};
  for (const [k, text] of new URLSearchParams(location.hash.slice(1))) {
    const number = Number(text);
    if (k === "task" && Object.hasOwn(TASKS, text)) values.task = text;
    if (k === "weights" && Object.hasOwn(KINDS, text)) values.weights = text;
    if (["scale", "rate"].includes(k) && number > 0) values[k] = number;
    if (["batch", "seed", "pace"].includes(k) && number >= 0 && number < 2 ** 31)
      values[k] = Math.round(k === "batch" ? Math.min(64, Math.max(1, number)) : number);
    if (k === "frozen") values.frozen = PARTS.filter(p => text.split(",").includes(p));
    if (k === "fault" && fault_of(text)) values.fault = text;
    if (k === "tab" && ["settings", "race", "break", "game"].includes(text)) values.tab = text;
    if (k === "open" && PARTS.includes(text)) values.open = text;
    if (k === "bits" && /^[01]{10}$|^[01]{16}\.[01]\.[01]{8}$/.test(text)) values.bits = text;
    if (k === "look" && number >= 0 && number < 12) values.look = Math.floor(number);
    if (k === "race") values.race = text.split(",").slice(0, 3).map(r => r.split("~"))
      .filter(([kind, s]) => Object.hasOwn(KINDS, kind) && Number(s) > 0)
      .map(([kind, s]) => [kind, Number(s)]);
  }
  if (!values.race.length) values.race = DEFAULTS.race;
  return values;
}
addEventListener("hashchange", () => {
  if (address() !== (location.hash || "#")) set(read_address(), true);
});
