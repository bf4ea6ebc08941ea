// The stations of the tour, as data; their texts are in tour.md.
//
// set           settings at the beginning, beside the defaults
// show          the parts of the page; rows: the rows of the model, all of them if left out
// guess         of the notes, the number of the right option, or null while no run shows it
// acts          [label, what it does]; an act gets the station's notes and may add to them, and a
//               label may be a function of them
// judge         the verdict from the notes and the run, text or a list of texts and tables, which are
//               lists of rows; empty while there is nothing to say

const ATTENTION = blocks.map(h => `${h}.attn`);
const AIMS = [["Output alone", ["output"]], ["With the input", ["input", "output"]],
  ["With positions", ["input", "wpe", "output"]]];
const FIRST = ["input", "wpe", "h.0.ln_1", "h.0.attn", "h.0.ln_2", "h.0.mlp", "ln_f", "output"];
const anew = label => notes => notes.runs.length ? `${label} anew` : label;
const all_but = (...parts) => PARTS.filter(p => !parts.includes(p));
const pc = lane => percent(lane.accuracy);
// Train until the accuracy is `until` or the limit comes; false if the reader went on meanwhile.
async function train(notes, busy, limit, until = 0.995) {
  const {tour} = S;
  Object.assign(notes, {busy, limit});
  await run(limit, until);
  if (S.tour === tour) notes.busy = null;
  return S.tour === tour && latest !== null && latest.step > 0;
}
// The same from the first step, and note the end.
async function train_with(notes, label, values, limit, until) {
  set(values, true);
  restart();
  if (await train(notes, "Training", limit, until)) notes.runs = [
    ...notes.runs.filter(r => r.label !== label), {label, step: latest.step, lanes: latest.lanes,
      stopped: !lost() && latest.step < limit && latest.lanes.some(l => l.accuracy < (until ?? 0.995))}];
}
const run_of = (notes, label) => notes.runs.find(r => r.label === label);
const reached = (notes, label) => run_of(notes, label)?.lanes[0].reached;
const steps_of = ({lanes, step}, n = 0) => lanes[n].reached ? `95 % right after ${count(
  lanes[n].reached)} steps` : `${pc(lanes[n])} right after ${count(step)} steps, not yet 95 %`;
const behind = ({lanes: [right, wrong]}) => right.accuracy - wrong.accuracy > 0.02;
const until_95 = ({lanes, step}, n = 0) => lanes[n].reached ? count(lanes[n].reached) : `not in ${count(step)}`;
const faster = run => run?.lanes.every(lane => lane.reached) ? `The orange start is there ${(run.lanes[0].reached /
  run.lanes[1].reached).toFixed(1)} times as fast. ` : "";
const table_of = (title, {runs}) => runs.length ? [[title, "right at the end", "steps to 95 %"], ...runs.map(r =>
  [r.label, pc(r.lanes[0]), until_95(r)])] : [];
// What the model says at a token of bit XOR.
const says = (bits, token) => E.choices(E.forward(models[0].model, E.batch_of(TASKS["bit-xor"], [
  {bits}]).x)[0], 5)[token - 5];
const turned = (bits, i) => bits.map((b, n) => n === i ? 1 - b : b);
const is_stuck = (bits, query, key) => says(bits, query) === says(turned(bits, key), query);

async function cut_pair(notes, query, key) {
  set({cut: [], look: query}, true);
  if (!(latest && latest.lanes[0].accuracy >= 0.99) &&
    !await train(notes, "First it learns XOR, then the line is cut", 3000)) return;
  Object.assign(notes, {busy: "Counting right answers", limit: null});
  await set({cut: [[query, key]]}, true);
  notes.busy = null;
  if (!cut_table) return;
  const {bits} = example, result = notes.cuts[`${query}-${key}`] = losses(TASKS[S.task]);
  if (result.falls.length) example.bits = [bits, ...[key, ...bits.keys()].map(i => turned(bits, i))].find(
    b => is_stuck(b, query, key) && says(b, query) !== (b[query] ^ b[key])) || bits;
  keep_bits();                             // an input near by whose answer the cut took
  const i = bits.findIndex((b, n) => b !== example.bits[n]), names = TASKS["bit-xor"].names;
  send_bit(query, key);
  if (i >= 0) result.set = `To show a wrong answer, the page set ${names[i]} to ${example.bits[i]}. `;
}
const cut_text = (cuts, query, key) => {
  const result = cuts[`${query}-${key}`], names = TASKS["bit-xor"].names;
  if (!result) return "";
  return `With ${names[query]} → ${names[key]} cut, over all 1,024 inputs: ` + (result.falls.length ?
    `${result.falls.join(", ")}; the others stay at ${percent(result.least)} or more. ` :
    "no answer falls by more than 2 points. ") + (result.set || "") + (!is_cut(query, key) ? "(That line is there again.) " :
    result.falls.length && is_stuck(example.bits, query, key) ? `In the picture ${names[query]} says ` +
    `${says(example.bits, query)} whether ${names[key]} is 0 or 1: flip ${names[key]}. ` : "");
};
// Draw an input of bit memory in which another string comes again.
function other_string() {
  const {which} = example, rng = E.generator(Math.random() * 2 ** 31, "input");
  while (example.which === which) Object.assign(example, TASKS["bit-memory"].draw(rng));
  keep_bits();
}
// Where “again” looks in the picture: a share for each token.
const again_looks = () => E.forward(models[0].model, E.batch_of(TASKS["bit-memory"], [example]).x)[1][
  "trunk.h.0.attn"].probabilities.subarray(12, 16);
const MEMORY = {task: "bit-memory", weights: "turned", scale: 1.4};
const at_angle = angle => notes => train_with(notes, `${angle}°`, {angle}, 6000, 0.955);
const race_starts = (angle, start) => notes => train_with(notes, `${STARTS[start]}, ${angle}°`,
  {angle, tab: "race", race: [["turned", 1.4, "drawn"], ["turned", 1.4, start]]}, 6000, 0.955);

const {races: [READ_STEPS, RANDOM_STEPS], memory_steps: MEMORY_STEPS} = D.measured;
const next_draw = ({runs}) => runs.length ? (S.seed + 1) % RANDOM_STEPS.length : 0;
const who_won = ([read, random]) => !read || !random || read === random ? "" :
  `In this race the ${read < random ? "one that read" : "random one"} was ahead. `;
const race_rows = ({runs}) => [["steps to 95 %", "read novels", "random"], ...runs.map(r => [r.label, until_95(r),
  until_95(r, 1)]), ["middle of twenty", ...[READ_STEPS, RANDOM_STEPS].map(all =>
  count(Math.floor([...all].sort((a, b) => a - b).slice(9, 11).reduce((a, b) => (a + b) / 2))))]];
// What the gradient check has found, or null: a text and a table.
const check_rows = () => !noticed || lost() ? null : !noticed.wrong ? [check_text()] : [
  `A check of ${noticed.checked} gradients notices: ${noticed.wrong} are wrong.`,
  [["the gradient of one", noticed.worst.name.replace("trunk.", "")], ["the code says", short(noticed.worst.gradient)],
    ["moving it gives", short(noticed.worst.difference)]]];
const RANDOM_AHEAD = RANDOM_STEPS.filter((steps, n) => steps < READ_STEPS[n]).length;

const STATIONS = [
  {set: {task: "bit-xor"}, show: ["flow", "bar", "chart", "sentence", "legend"],
    guess: notes => notes.runs.length ? notes.runs[0].lanes[0].accuracy > 0.95 ? 2 :
        notes.runs[0].lanes[0].accuracy > 0.65 ? 1 : 0 : null,
    acts: [[anew("Train"), notes => train_with(notes, "frozen", {}, 3000)], ["Flip a3", () => flip(2)]],
    judge: notes => {
      const {bits} = example, names = TASKS["bit-xor"].names, n = flipped % 5;
      const right = bits[n] ^ bits[n + 5], said = flipped === null ? null : says(bits, n + 5);
      return (notes.runs.length ? `${pc(notes.runs[0].lanes[0])} right after ${count(notes.runs[0].step)} steps, and ` +
        `no frozen number has moved. ${notes.runs[0].lanes[0].accuracy > 0.99 ? flipped === null ? "Flip a bit: it knows. " :
          "" : "Stopped too early to tell. "}` : "") + (said === null ? "" :
        `${names[flipped]} is now ${bits[flipped]}: a${n + 1} and b${n + 1} ${right ? "differ" : "are equal"}, so the ` +
        `right answer at b${n + 1} is ${right}. The model says ${said}: ${said !== right ? "wrong ✗." :
          `right ✓${notes.runs.length ? "." : ", by luck."}`}`);
    }},
  {set: {task: "bit-xor"}, show: ["letters"],
    acts: [["Try “it was very”", () => { letters = "it was very"; show_letters(); }]],
    judge: () => letters && trunk.arrays["wte.weight"] ? (([[a, p], [b]]) => `After “${letters.slice(
      -LETTERS)}” it expects ${spelled(a)} with ${percent(p)}, then ${spelled(b)}.`)(expects(letters.slice(
      -LETTERS))) : ""},
  {set: {task: "bit-xor", tab: "race", race: [["pretrained", 1.4, "drawn"], ["random", 0.55, "drawn"]]},
    show: ["strip", "bar", "chart"],
    guess: ({runs}) => runs.length ? RANDOM_AHEAD > 10 ? 1 : 0 : null,
    acts: [[notes => `Run race ${next_draw(notes) + 1}`, async notes => {
      const seed = next_draw(notes);
      notes.runs = [];
      await train_with(notes, `race ${seed + 1}, just run`, {seed}, 3000, 0.95);
    }]],
    judge: notes => notes.runs.length ? [`${who_won(notes.runs[0].lanes.map(lane => lane.reached))}In ${RANDOM_AHEAD} of ` +
      "twenty races the random one is ahead: the reading is not needed.", race_rows(notes)] : ""},
  {set: {task: "bit-xor", look: 7},
    show: ["flow", "lines", "legend", "look", "cuts"], rows: ["input", ...ATTENTION, "output"],
    guess: notes => {
      const result = notes.cuts["7-2"];
      return result ? result.falls.length === 0 ? 2 : result.falls.length === 1 ? 0 : 1 : null;
    },
    acts: [["Train with a3 = 1", async notes => {
      if (!example.bits[2]) flip(2);
      if (await train(notes, "Training", 3000)) send_bit(7, 2);
    }],
      ["Flip a3", () => flip(2)], ["Cut b3 → a3", notes => cut_pair(notes, 7, 2)],
      ["Cut b3 → a2", notes => cut_pair(notes, 7, 1)]],
    judge: ({cuts}) => cut_text(cuts, 7, 2) + cut_text(cuts, 7, 1) + (cuts["7-2"] && cuts["7-1"] &&
      !cuts["7-1"].falls.length ? "So the bit comes to b3 by its look at a3; by guessing b3 would have 50 %." :
      latest && latest.step && !cuts["7-2"] ? `${pc(latest.lanes[0])} right after ` +
      `${count(latest.step)} steps. Flip a3 and watch the lines of b3: where they go depends on the bit.` : "")},
  {set: {task: "bit-xor", tab: "break", fault: "positions"}, show: ["bar", "chart", "panel"],
    guess: ({runs: [both]}) => !both ? null : both.lanes[1].accuracy < 0.65 ? 0 :
      behind(both) ? 1 : 2,
    acts: [[anew("Train both"), notes => train_with(notes, "fault", {tab: "break", fault: "positions"}, 600)],
      ["Check the gradients", async notes => {
        await set({tab: "break", fault: "positions"}, true);
        Object.assign(notes, {busy: "Moving numbers one by one", limit: null});
        await verify();
        notes.busy = null;
      }]],
    judge: ({runs: [both]}) => [both ? `After ${count(both.step)} steps the right model has ${pc(both.lanes[0])}, the ` +
      `one with the fault ${pc(both.lanes[1])}. ${behind(both) ? "Beside a right one it is behind; alone, who would " +
      "have known?" : "The curves do not tell which is wrong."} ` : "", ...check_rows() || [both ? "A check can tell: move " +
      "one number a little, and see whether it helps as much as the gradient says." : ""]]},
  {set: {task: "bit-xor"}, show: ["links"], acts: [], judge: () => ""},
  // Why can it look?
  {set: {task: "bit-xor", rate: 0.01, frozen: all_but("output")},
    show: ["flow", "lines", "bar", "chart", "sentence"], rows: ["input", "wpe", ...ATTENTION, "output"],
    guess: notes => {
      const ends = AIMS.map(([label]) => run_of(notes, label));
      const best = ends.findIndex(r => r && r.lanes[0].reached !== null);
      return best < 0 || ends.slice(0, best).some(r => !r) ? null : best;
    },
    acts: AIMS.map(([label, parts]) => [label, notes => train_with(notes, label,
      {rate: 0.01, frozen: all_but(...parts)}, 1000)]),
    judge: notes => [notes.runs.some(r => r.label === AIMS[2][0] && r.lanes[0].reached) ? "What goes into attention " +
      "is trained: the positions tell a3 from a2, and the frozen heads can tell them apart." : "",
    table_of("trained", notes)]},
  {set: {...MEMORY, look: 3}, show: ["flow", "lines", "bar", "chart", "legend", "look"],
    rows: ["input", "wpe", "h.0.attn", "output"],
    guess: notes => notes.runs.length ? Number(notes.runs[0].lanes[0].reached !== null) : null,
    acts: [[anew("Train"), notes => train_with(notes, "random block", {}, 3000, 0.98)], ["New input", other_string]],
    judge: notes => notes.runs.length ? `${steps_of(notes.runs[0])}. In the picture “again” looks at the ` +
      `string that fits, string ${example.which + 1}, with ${percent(again_looks()[example.which])}${again_looks()[
        example.which] < 0.6 ? "; the rest goes to others" : ""}. Press New input for another.` : ""},
  {set: MEMORY, show: ["forms", "bar", "chart"],
    guess: notes => {
      const [near, far] = [60, 120].map(a => reached(notes, `${a}°`));
      return !near || far === undefined ? null : far === null ? 2 : far > 2 * near ? 1 : 0;
    },
    acts: [["Train at 60°", at_angle(60)], ["Train at 120°", at_angle(120)],
      [() => `At your angle: ${S.angle}°${S.angle > 130 ? " (up to 6,000 steps: minutes)" : ""}`,
        notes => at_angle(S.angle)(notes)]],
    judge: notes => {
      const [near, far] = [60, 120].map(a => reached(notes, `${a}°`));
      return [near && far ? `120° took ${(far / near).toFixed(1)} times as long. ` +
        "The frozen numbers are as large as before: only how keys fit queries has changed." :
        near || far ? `Now train at ${near ? 120 : 60}° to compare.` : "", table_of("angle", notes)];
    }},
  {set: {...MEMORY, angle: 120, tab: "race",
    race: [["turned", 1.4, "drawn"], ["turned", 1.4, "aligned"]]}, show: ["forms", "bar", "chart"],
  guess: notes => {
    const r = run_of(notes, "orange, 120°");
    if (!r || !r.lanes[1].reached) return null;
    const gain = (r.lanes[0].reached || r.step) / r.lanes[1].reached;
    return gain > 2.5 ? 2 : gain > 1.3 ? 1 : 0;
  },
  acts: [["Race at 120°", race_starts(120, "aligned")],
    ["Blue start at 90°", race_starts(90, "opposed")]],
  judge: notes => notes.runs.length ? [faster(run_of(notes, "orange, 120°")) + (run_of(notes, "blue, 90°")?.lanes[1].reached ?
    "A blue start is slow, not lost. " : "") + "Lower curve: above 0, tokens look at similar ones; below 0, away from them.",
  [["steps to 95 %", "random start", "orange or blue start"], ...notes.runs.map(r => [r.label, until_95(r), until_95(r, 1)])]] : ""},
  {set: {task: "bit-xor"}, show: ["points"],
    guess: notes => notes.shown ? 2 : null,
    acts: [["Show the heads", notes => show_points(notes.shown = true)]],
    judge: notes => notes.shown ? ["After bit memory all heads do, and bit memory is learned soonest. " +
      "After novels some do, but novels did not help here; they do on text (More).",
    [["pretrained on", "heads right of the band", "steps to 95 % on bit memory"], ...Object.entries(D.heads.traces).map(
      ([name, rows]) => [TRAINED_ON[name], `${rows.flat().filter(v => v - D.heads.random[0] > 2 *
        D.heads.random[1]).length} of ${rows.flat().length}`, MEMORY_STEPS[name]]), ["random numbers", "–", MEMORY_STEPS.random]]] : ""},
];
STATIONS.forEach((station, n) => Object.assign(station, D.stations[n]));
