// The stations of the tour, as data.
//
// title, text   one question and at most sixty words
// set           settings at the beginning, beside the defaults
// show          the parts of the page; rows: the rows of the model, all of them if left out
// guess         {options, right}: right(notes) is the number of the right option, once a run shows it
// acts          [label, what it does]; an act gets the station's notes and may add to them
// judge         the verdict, as text, from the notes and the run; empty while there is nothing to say
// more          a line that opens

const OUTER = ["input", "wpe", "output"], BLOCK = part => blocks.map(h => `${h}.${part}`);
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
    `${result.falls.join(", ")}; ${result.least === 1 ? "the others stay at 100 %" :
      `the others stay at ${percent(result.least)} or more`}. ` : "no answer falls by more than 2 points. ");
};
const MEMORY = {task: "bit-memory", weights: "turned", scale: 1.4};
const at_angle = (angle, task = "bit-memory") => notes => train_with(notes,
  `${TASKS[task].title} at ${angle}°`, {task, ...TASKS[task].settings, rate: 0.01, angle,
    start: "drawn", tab: "settings"}, 6000, 0.96);
const race_starts = (angle, start) => notes => train_with(notes, `${start}, ${angle}°`,
  {angle, tab: "race", race: [["turned", 1.4, "drawn"], ["turned", 1.4, start]]}, 6000, 0.96);

const STATIONS = [
  {title: "What is asked?", set: {task: "bit-xor"}, show: ["flow", "legend"],
    rows: ["input", "h.0.attn", "h.0.mlp", "output"],
    text: "Ten bits go in, one after the other. The model reads each as one token. For every pair, " +
      "such as a3 and b3, it must say whether the two bits differ: this is XOR. Now it only " +
      "guesses. Pink parts of it will be trained, grey ones are frozen: their numbers never " +
      "change. Flip a3.",
    acts: [["Flip a3", () => flip(2)]],
    judge: () => {
      if (flipped === null || S.task !== "bit-xor") return "";
      const {bits} = example, n = flipped % 5, names = TASKS["bit-xor"].names;
      return `${names[flipped]} is now ${bits[flipped]}. The right answer at b${n + 1} turned to ` +
        `${bits[n] ^ bits[n + 5]}, because ${bits[n]} and ${bits[n + 5]} ` +
        `${bits[n] === bits[n + 5] ? "are equal" : "differ"}. No other right answer changed. ` +
        "✓ and ✗ mark what the model says.";
    },
    more: "The five answers come out below the second string, at b1 to b5. A model that guesses has " +
      "half of them right."},
  {title: "What has the frozen part seen?", set: {task: "bit-xor"}, show: ["letters"],
    text: "The frozen part is a small language model. It has read 14 novels, letter by letter, and " +
      "learned one thing: to expect the next letter. It never saw a task of bits. Change the " +
      "letters and see what it expects.",
    acts: [["Try “which was ver”", () => { letters = "which was ver"; show_letters(); }]],
    judge: () => letters && trunk.arrays["wte.weight"] ? (([[a, p], [b]]) => `After “${letters.slice(
      -LETTERS)}” it expects “${a}” with ${percent(p)}, then “${b}”.`)(expects(letters.slice(
      -LETTERS))) : "",
    more: "The trunk is minigpt-tiny: 2 blocks, 2 heads, 32 channels. For the tasks of bits its table " +
      "of letters is replaced by a new input and a new output layer. weights/README.md says how it " +
      "was trained."},
  {title: "Can it learn with 97 % frozen?", set: {task: "bit-xor"},
    show: ["flow", "back", "bar", "chart", "sentence", "legend"],
    text: "Only the pink parts learn: the input layer, the positions, the norms and the output " +
      "layer. Attention and feed-forward keep what they have from the novels. How far will it get " +
      "on XOR?",
    guess: {options: ["It stays at a guess, 50 %", "About three quarters", "All right, 100 %"],
      right: notes => notes.runs.length ? notes.runs[0].lanes[0].accuracy > 0.95 ? 2 :
        notes.runs[0].lanes[0].accuracy > 0.65 ? 1 : 0 : null},
    acts: [["Train", notes => train_with(notes, "frozen", {}, 3000)]],
    judge: notes => notes.runs.length ? `${pc(notes.runs[0].lanes[0])} after ` +
      `${count(notes.runs[0].step)} steps. ${sizes_of(models[0].model).map(count).join(" of ")} ` +
      "numbers were trained, no other moved. Flip a bit: it knows." : "",
    more: "The column at the right shows how large the gradient is with which each part learns. It " +
      "passes through frozen parts, because trained ones lie above them."},
  {title: "Was it the reading?", set: {task: "bit-xor", tab: "race"},
    show: ["flow", "bar", "chart", "legend"],
    text: "Three models with the same frozen shape start side by side. One has read novels. One has " +
      "random numbers, as the paper draws them: it has read nothing. One has random numbers that " +
      "are too small. Which of them fails?",
    guess: {options: ["The random one", "The one that is too small", "Both random ones"],
      right: notes => {
        if (!notes.runs.length) return null;
        const [, random, small] = notes.runs[0].lanes.map(l => l.reached !== null);
        return random ? small ? null : 1 : small ? 0 : 2;
      }},
    acts: [["Race", notes => train_with(notes, "race", {}, 900)]],
    judge: notes => notes.runs.length ? verdict_of(notes.runs[0]) : "",
    more: "Measured with larger models: on bits, random weights do at least as well as language " +
      "(docs/results/language.md). The spread of GPT-2's first numbers is 0.55 divided by the root " +
      "of the channels; 0.1 is too small."},
  {title: "Who carries the bit?", set: {task: "bit-xor", look: 7},
    show: ["flow", "legend", "look", "cuts"], rows: ["input", ...BLOCK("attn"), "output"],
    text: "b3 must know a3. Lines are attention: the thicker, the more a token looks there. They move " +
      "with the input and do not tell which one matters. So cut one, in every block, and count " +
      "right answers over all 1,024 inputs. What falls without b3 → a3?",
    guess: {options: ["Only the answer at b3", "All answers", "Nothing"],
      right: notes => {
        const result = notes.cuts["7-2"];
        return result ? result.falls.length === 0 ? 2 : result.falls.length === 1 ? 0 : 1 : null;
      }},
    acts: [["Cut b3 → a3", notes => cut_pair(notes, 7, 2)],
      ["Cut b3 → a2", notes => cut_pair(notes, 7, 1)]],
    judge: notes => cut_text(notes, 7, 2) + cut_text(notes, 7, 1) + (notes.cuts["7-2"] &&
      notes.cuts["7-1"] && !notes.cuts["7-1"].falls.length ?
      "So the line b3 → a3 carries the bit, whatever the picture shows." : ""),
    more: "Click a token to keep it, then a token before it to cut what it sees; click again to mend " +
      "it. In lesson 8 the same is done in Python."},
  {title: "How can frozen attention aim?", set: {task: "bit-xor"},
    show: ["flow", "bar", "chart", "sentence"], rows: ["input", "wpe", ...BLOCK("attn"), "output"],
    text: "Attention's own numbers are frozen, and yet b3 finds a3. Something that is trained must " +
      "help it to aim. Which trained parts are enough?",
    guess: {options: ["The output layer", "Input and output", "Input, output and positions"],
      right: notes => {
        const ends = ["output", "input and output", "input, output and positions"].map(label =>
          run_of(notes, label));
        const best = ends.findIndex(r => r && r.lanes[0].reached !== null);
        return best < 0 || ends.slice(0, best).some(r => !r) ? null : best;
      }},
    acts: [["Output alone", notes => train_with(notes, "output", {rate: 0.01,
      frozen: all_but("output")}, 600)],
    ["Input and output", notes => train_with(notes, "input and output", {rate: 0.01,
      frozen: all_but("input", "output")}, 600)],
    ["With positions", notes => train_with(notes, "input, output and positions",
      {rate: 0.01, frozen: all_but(...OUTER)}, 3000)]],
    judge: notes => list_of(notes) + (notes.runs.some(r => r.label.includes("positions") &&
      r.lanes[0].reached) ? " What goes into attention is trained: the positions tell a3 from a2, " +
      "and the frozen heads can tell them apart." : ""),
    more: "450 numbers are trained in the third run: 64 of the input layer, 320 of the positions and " +
      "66 of the output layer."},
  {title: "Can it find the same string again?", set: {...MEMORY},
    show: ["flow", "bar", "chart", "legend", "look"],
    rows: ["input", "wpe", "h.0.attn", "output"],
    text: "Three strings of twelve bits come in, each one token, then one of them again with hidden " +
      "bits (·). Fill them in. To copy what is visible gives 75 %. Places do not help here: " +
      "attention must find the token that is alike. The block is frozen and random. Can it?",
    guess: {options: ["No, about 75 %", "Yes, nearly always"],
      right: notes => notes.runs.length ? Number(notes.runs[0].lanes[0].reached !== null) : null},
    acts: [["Train", notes => train_with(notes, "random block", {}, 3000, 0.98)]],
    judge: notes => notes.runs.length ? `${steps_of(notes.runs[0])}. Flip bits of a string and watch ` +
      "the last token look for the one that is alike." : "",
    more: "A few inputs have two strings that agree with all visible bits, so 100 % is out of reach. " +
      "The paper's bit memory has five strings of 1,000 bits."},
  {title: "What if the frozen keys are turned?", set: {...MEMORY, angle: 120},
    show: ["forms", "bar", "chart"],
    text: "A token asks with its query; other tokens answer with their keys. Here the frozen keys are " +
      "turned against the queries. Move the slider: each number stays as random as before (left), " +
      "but the head now looks away from likeness (right). How long does bit memory take at 120°?",
    guess: {options: ["As long as at 60°", "Several times as long", "It never learns"],
      right: notes => {
        const [near, far] = [60, 120].map(a => run_of(notes, `bit memory at ${a}°`));
        if (!near || !far || !near.lanes[0].reached) return null;
        const steps = far.lanes[0].reached;
        return steps === null ? 2 : steps > 2 * near.lanes[0].reached ? 1 : 0;
      }},
    acts: [["60°", at_angle(60)], ["90°", at_angle(90)], ["120°", at_angle(120)],
      ["XOR at 120°", at_angle(120, "bit-xor")]],
    judge: notes => list_of(notes) + (run_of(notes, "bit memory at 120°") && run_of(notes,
      "bit XOR at 120°") ? " XOR looks for places, not for likeness: the angle matters little." : ""),
    more: "With 128 channels, and strings of 20 bits, three seeds each: about 100 steps up to 90°, 375 " +
      "at 105°, 1,600 at 120°, 3,900 at 130°, 4,800 at 135° (docs/results/why.md). There is no angle " +
      "at which success ends; it only takes longer."},
  {title: "Same frozen numbers, another start?", set: {...MEMORY, angle: 120, tab: "race",
    race: [["turned", 1.4, "drawn"], ["turned", 1.4, "aligned"]]},
  show: ["forms", "bar", "chart"],
  text: "Only directions with orange bars find likeness. Training turns the input layer into them, " +
      "and its part there grows like compound interest: a bad start takes long. At 120°, let the " +
      "input layer start in the orange directions. No frozen number changes. What happens?",
  guess: {options: ["No difference", "A little faster", "At least ten times faster"],
    right: notes => {
      const r = run_of(notes, "aligned, 120°");
      if (!r || !r.lanes[1].reached) return null;
      const gain = (r.lanes[0].reached || r.step) / r.lanes[1].reached;
      return gain > 10 ? 2 : gain > 1.3 ? 1 : 0;
    }},
  acts: [["Race at 120°", race_starts(120, "aligned")],
    ["Opposed start at 90°", race_starts(90, "opposed")]],
  judge: notes => notes.runs.map(r => `At ${r.label.split(", ")[1]}: random start ${steps_of(r)}; ` +
      `${r.label.split(",")[0]} start ${steps_of(r, 1)}.`).join(" ") + (notes.runs.length ?
    " The curve below shows the match: it must rise above 0." : ""),
  more: "A token x scores an equal token by x M xᵀ, where M = W_q W_kᵀ = S + A. The antisymmetric " +
      "part gives x A xᵀ = 0, so likeness needs S, and an eigenvalue λ above 0. Along it the input " +
      "layer grows as e^(2κλt). A start that looks away is slow, not lost (docs/results/why.md)."},
  {title: "What did pretraining give?", set: {task: "bit-xor"}, show: ["points"],
    text: "Each point is one head of a pretrained model: how much it looks for likeness. The grey band " +
      "is where random heads lie. Training on language, on images, on bit memory: which one made " +
      "all of its heads look for likeness?",
    guess: {options: ["Language", "Images", "Bit memory"], right: notes => notes.shown ? 2 : null},
    acts: [["Show the heads", notes => { notes.shown = true; show_points(); }]],
    judge: notes => {
      if (!notes.shown) return "";
      const {traces, random: [mean, deviation]} = D.heads;
      return Object.entries(traces).map(([name, rows]) => {
        const all = rows.flat(), above = all.filter(v => v > mean + 2 * deviation).length;
        return `${name.replace("minigpt-", "")}: ${above} of ${all.length} heads above the band`;
      }).join("; ") + ". Reading helps on text: the next letter, 45.4 % after novels, 39.7 % with " +
        "random numbers of the same spread.";
    },
    more: "A point is the trace of a head's form over its norm; minifpt heads prints it. The two " +
      "percentages: docs/results/language.md, section “Source and target, related or not”, means " +
      "of five seeds; a trunk with random numbers as the paper draws them has 38.0 %."},
  {title: "Does a good curve mean right code?", set: {task: "bit-xor", tab: "break",
    fault: "positions"}, show: ["flow", "back", "bar", "chart", "panel"],
  text: "One line of the backward pass is wrong here, the struck one below: a gradient takes one " +
      "example where it needs the sum. A right model trains beside it. Will the curve show that " +
      "something is wrong?",
  guess: {options: ["Yes, it stays at 50 %", "No, it learns all the same"],
    right: notes => notes.runs.length ? Number(notes.runs[0].lanes[1].accuracy > 0.8) : null},
  acts: [["Train both", notes => train_with(notes, "fault", {tab: "break", fault: "positions"}, 600)],
    ["Check the gradients", async () => { set({tab: "break", fault: "positions"}, true); await verify(); }],
    ["Play: find a fault", () => set({tab: "game"}, true)]],
  judge: notes => notes.runs.length ? `Right ${pc(notes.runs[0].lanes[0])}, with the fault ` +
      `${pc(notes.runs[0].lanes[1])} after ${count(notes.runs[0].step)} steps. Only a gradient check, ` +
      "which compares with finite differences, can tell." : "",
  more: "A finite difference moves one number a little and looks at the loss. minifpt gradcheck does " +
      "it for all operations; minifpt check for your own."},
  {title: "Where to go on?", set: {task: "bit-xor"}, show: ["flow", "bar", "chart"],
    text: "You have seen that 97 % of a model can stay frozen, that novels are not the reason, which " +
      "line carries a bit, what decides how long a search takes, and that a curve proves nothing. " +
      "The free page has every control.",
    acts: [["The free page", () => { location.hash = "free"; }]],
    judge: () => "",
    more: "Lesson 1: gradients by hand. Lesson 4: attention. Lesson 7: freeze masks. Lesson 8: cut and " +
      "patch. Commands: minifpt train bit-xor; minifpt compare bit-xor --models minigpt-language " +
      "random; minifpt train bit-memory --model random:1x1x128@1.41,qk=120 --start aligned; " +
      "minifpt heads minigpt-bits; minifpt steps bit-xor."},
];
