// The stations of the tour, as data; their texts are in tour.md.
//
// set           settings at the beginning, beside the defaults
// show          the parts of the page; rows: the rows of the model, all of them if left out
// guess         of the notes, the number of the right option, or null while no run shows it
// acts          [label, what it does]; an act gets the station's notes and may add to them
// main          which of them the button Train does; the first if left out
// judge         the verdict, as text, from the notes and the run; empty while there is nothing to say

const OUTER = ["input", "wpe", "output"], ATTENTION = blocks.map(h => `${h}.attn`);
const FIRST = ["input", "wpe", "h.0.ln_1", "h.0.attn", "h.0.ln_2", "h.0.mlp", "ln_f", "output"];
const all_but = (...parts) => PARTS.filter(p => !parts.includes(p));
const pc = lane => percent(lane.accuracy);
// Train from the first step until the accuracy is 99.5 % or the limit comes, and note the end.
async function train_with(notes, label, values, limit, until = 0.995) {
  set(values, true);
  restart();
  notes.busy = label;
  await run(limit, until);
  notes.busy = null;
  if (latest && latest.step) notes.runs = [...notes.runs.filter(r => r.label !== label),
    {label, step: latest.step, lanes: latest.lanes}];
}
const run_of = (notes, label) => notes.runs.find(r => r.label === label);
const steps_of = ({lanes, step}, n = 0) => lanes[n].reached ? `95 % after ${count(lanes[n].reached)} ` +
  "steps" : `${pc(lanes[n])} after ${count(step)} steps, not yet 95 %`;
const list_of = notes => notes.runs.map(r => `${r.label}: ${steps_of(r)}.`).join(" ");

async function cut_pair(notes, query, key) {
  set({cut: [], look: query}, true);
  if (!latest || latest.lanes[0].accuracy < 0.99) {
    notes.busy = "first it learns the task";
    await run(3000, 0.995);
    notes.busy = null;
  }
  cut_line(query, key);
  await measure_cuts();
  if (cut_table) notes.cuts[`${query}-${key}`] = losses(TASKS[S.task]);
}
const cut_text = (notes, query, key) => {
  const result = notes.cuts[`${query}-${key}`], names = TASKS["bit-xor"].names;
  if (!result) return "";
  return `Without ${names[query]} → ${names[key]}, over all 1,024 inputs: ` + (result.falls.length ?
    `${result.falls.join(", ")}; the others stay at ${percent(result.least)} or more. ` :
    "no answer falls by more than 2 points. ");
};
const MEMORY = {task: "bit-memory", weights: "turned", scale: 1.4};
const at_angle = angle => notes => train_with(notes, `${angle}°`, {angle}, 6000, 0.955);
const race_starts = (angle, start) => notes => train_with(notes, `${start}, ${angle}°`,
  {angle, tab: "race", race: [["turned", 1.4, "drawn"], ["turned", 1.4, start]]}, 6000, 0.955);

const STATIONS = [
  {set: {task: "bit-xor"}, show: ["flow", "legend"],
    rows: ["input", "h.0.attn", "h.0.mlp", "output"],
    acts: [["Flip a3", () => flip(2)]],
    judge: () => {
      if (flipped === null || S.task !== "bit-xor") return "";
      const {bits} = example, n = flipped % 5, names = TASKS["bit-xor"].names;
      return `${names[flipped]} is now ${bits[flipped]}. The right answer at b${n + 1} turned to ` +
        `${bits[n] ^ bits[n + 5]}, because ${bits[n]} and ${bits[n + 5]} ` +
        `${bits[n] === bits[n + 5] ? "are equal" : "differ"}. No other right answer changed. ` +
        "✓ and ✗ mark what the model says.";
    }},
  {set: {task: "bit-xor"}, show: ["letters"],
    acts: [["Try “it was very”", () => { letters = "it was very"; show_letters(); }]],
    judge: () => letters && trunk.arrays["wte.weight"] ? (([[a, p], [b]]) => `After “${letters.slice(
      -LETTERS)}” it expects “${a}” with ${percent(p)}, then “${b}”.`)(expects(letters.slice(
      -LETTERS))) : ""},
  {set: {task: "bit-xor"},
    show: ["flow", "back", "bar", "chart", "sentence", "legend"], rows: FIRST,
    guess: notes => notes.runs.length ? notes.runs[0].lanes[0].accuracy > 0.95 ? 2 :
        notes.runs[0].lanes[0].accuracy > 0.65 ? 1 : 0 : null,
    acts: [["Train", notes => train_with(notes, "frozen", {}, 3000)]],
    judge: notes => notes.runs.length ? `${pc(notes.runs[0].lanes[0])} after ` +
      `${count(notes.runs[0].step)} steps. ${sizes_of(models[0].model).map(count).join(" of ")} ` +
      "numbers were trained, no other moved. Flip a bit: it knows." : ""},
  {set: {task: "bit-xor", tab: "race"},
    show: ["flow", "bar", "chart", "legend"], rows: FIRST,
    guess: notes => {
      if (!notes.runs.length) return null;
      const [, random, small] = notes.runs[0].lanes.map(l => l.reached !== null);
      return random ? small ? null : 1 : small ? 0 : 2;
    },
    acts: [["Race", notes => train_with(notes, "race", {}, 900)]],
    judge: notes => notes.runs.length ? verdict_of(notes.runs[0]) : ""},
  {set: {task: "bit-xor", look: 7},
    show: ["flow", "legend", "look", "cuts"], rows: ["input", ...ATTENTION, "output"],
    guess: notes => {
      const result = notes.cuts["7-2"];
      return result ? result.falls.length === 0 ? 2 : result.falls.length === 1 ? 0 : 1 : null;
    },
    acts: [["Cut b3 → a3", notes => cut_pair(notes, 7, 2)],
      ["Cut b3 → a2", notes => cut_pair(notes, 7, 1)]],
    judge: notes => cut_text(notes, 7, 2) + cut_text(notes, 7, 1) + (notes.cuts["7-2"] &&
      notes.cuts["7-1"] && !notes.cuts["7-1"].falls.length ?
      "So the line b3 → a3 carries the bit, whatever the picture shows." : "")},
  {set: {task: "bit-xor"},
    show: ["flow", "bar", "chart", "sentence"], rows: ["input", "wpe", ...ATTENTION, "output"],
    guess: notes => {
      const ends = ["output", "input and output", "input, output and positions"].map(label =>
        run_of(notes, label));
      const best = ends.findIndex(r => r && r.lanes[0].reached !== null);
      return best < 0 || ends.slice(0, best).some(r => !r) ? null : best;
    },
    acts: [["Output alone", notes => train_with(notes, "output", {rate: 0.01,
      frozen: all_but("output")}, 600)],
    ["Input and output", notes => train_with(notes, "input and output", {rate: 0.01,
      frozen: all_but("input", "output")}, 600)],
    ["With positions", notes => train_with(notes, "input, output and positions",
      {rate: 0.01, frozen: all_but(...OUTER)}, 3000)]],
    judge: notes => list_of(notes) + (notes.runs.some(r => r.label.includes("positions") &&
      r.lanes[0].reached) ? " What goes into attention is trained: the positions tell a3 from a2, " +
      "and the frozen heads can tell them apart." : "")},
  {set: {...MEMORY},
    show: ["flow", "bar", "chart", "legend", "look"],
    rows: ["input", "wpe", "h.0.attn", "output"],
    guess: notes => notes.runs.length ? Number(notes.runs[0].lanes[0].reached !== null) : null,
    acts: [["Train", notes => train_with(notes, "random block", {}, 3000, 0.98)]],
    judge: notes => notes.runs.length ? `${steps_of(notes.runs[0])}. Flip bits of a string and watch ` +
      "the last token look for the one that is alike." : ""},
  {set: {...MEMORY, angle: 120}, main: 2,
    show: ["forms", "bar", "chart"],
    guess: notes => {
      const [near, far] = [60, 120].map(a => run_of(notes, `${a}°`));
      if (!near || !far || !near.lanes[0].reached) return null;
      const steps = far.lanes[0].reached;
      return steps === null ? 2 : steps > 2 * near.lanes[0].reached ? 1 : 0;
    },
    acts: [["Train at 60°", at_angle(60)], ["Train at 120°", at_angle(120)],
      ["At the slider's angle", notes => at_angle(S.angle)(notes)]],
    judge: notes => list_of(notes) + ([60, 120].every(a => run_of(notes, `${a}°`)) ?
      " The numbers have the same spread; only how queries and keys fit has changed." : "")},
  {set: {...MEMORY, angle: 120, tab: "race",
    race: [["turned", 1.4, "drawn"], ["turned", 1.4, "aligned"]]},
  show: ["forms", "bar", "chart"],
  guess: notes => {
    const r = run_of(notes, "aligned, 120°");
    if (!r || !r.lanes[1].reached) return null;
    const gain = (r.lanes[0].reached || r.step) / r.lanes[1].reached;
    return gain > 2.5 ? 2 : gain > 1.3 ? 1 : 0;
  },
  acts: [["Race at 120°", race_starts(120, "aligned")],
    ["Opposed start at 90°", race_starts(90, "opposed")]],
  judge: notes => notes.runs.map(r => `At ${r.label.split(", ")[1]}: random start ${steps_of(r)}; ` +
      `${r.label.split(",")[0]} start ${steps_of(r, 1)}.`).join(" ") + (notes.runs.length ?
    " The lower curve shows the match: it must rise above 0." : "")},
  {set: {task: "bit-xor"}, show: ["points"],
    guess: notes => notes.shown ? 2 : null,
    acts: [["Show the heads", notes => { notes.shown = true; show_points(); }]],
    judge: notes => {
      if (!notes.shown) return "";
      const {traces, random: [mean, deviation]} = D.heads;
      return Object.entries(traces).map(([name, rows]) => {
        const all = rows.flat(), above = all.filter(v => v > mean + 2 * deviation).length;
        return `${TRAINED_ON[name]}: ${above} of ${all.length} heads above the band`;
      }).join("; ") + ". Reading helps on text: the next letter, 45.4 % after novels, 39.7 % with " +
        "random numbers of the same spread.";
    }},
  {set: {task: "bit-xor", tab: "break",
    fault: "positions"}, show: ["flow", "back", "bar", "chart", "panel"],
  rows: FIRST,
  guess: notes => notes.runs.length ? Number(notes.runs[0].lanes[1].accuracy > 0.8) : null,
  acts: [["Train both", notes => train_with(notes, "fault", {tab: "break", fault: "positions"}, 600)],
    ["Check the gradients", () => set({tab: "break", fault: "positions"}, true).then(verify)],
    ["Play: find a fault", () => set({tab: "game"}, true)]],
  judge: notes => notes.runs.length ? `Right ${pc(notes.runs[0].lanes[0])}, with the fault ` +
      `${pc(notes.runs[0].lanes[1])} after ${count(notes.runs[0].step)} steps. Only a gradient check, ` +
      "which compares with finite differences, can tell." : ""},
  {set: {task: "bit-xor"}, show: ["flow", "bar", "chart"],
    acts: [["The free page", () => { location.hash = "free"; }]],
    judge: () => ""},
];
STATIONS.forEach((station, n) => Object.assign(station, D.stations[n]));
