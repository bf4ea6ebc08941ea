// The worker: trains up to three models side by side and checks gradients.  Before this text stand
// ENGINES, the right engine and one for each fault.
const SLICE = 12;                          // milliseconds of training between two looks at messages
const FRAME = 33;                          // milliseconds between two reports
const WINDOW = 50;                         // steps that the loss and accuracy are means of
const GOAL = 0.95;                         // the accuracy whose first step is noted
const POINTS = 300;                        // of a curve; beyond it every second one is dropped
const R = ENGINES.right;
let config, trunk, task, settings, draws, lanes = [], step = 0, target = 0, until = 2, reported = 0;
let timer = null, multiply_adds = 0, stride = 1, started = 0, begun = 0, answered = 0;
const again = new MessageChannel();        // a message to ourselves comes sooner than a timeout
again.port1.onmessage = () => { timer = null; train(); };

onmessage = ({data}) => {
  if (data.number) answered = data.number;
  ({start, reset, change, run, check, agree, cut})[data.kind](data);
};

function start(message) { ({config, trunk} = message); }

// lanes is a list of {kind, scale, angle, start, fault}; all begin with the same seed and see the
// same batches.
function reset(message) {
  ({settings} = message);
  task = R.TASKS[settings.task];
  draws = R.generator(settings.seed, "batches");
  step = target = 0;
  stride = 1;
  lanes = message.lanes.map(lane => {
    const model = R.make_model(config, task, {...trunk, ...lane}, settings.seed);
    R.freeze(model, settings.frozen);
    const engine = ENGINES[lane.fault || "right"], rng = R.generator(settings.seed, "first");
    const first = engine.evaluate(model, R.draw_batch(task, rng, 64));
    engine.learn(model, R.draw_batch(task, rng, settings.batch));      // for the way back
    return {...lane, model, engine, recent: [], ...first, reached: null,
      moved: new Set(trained(model)), angles: null, curve: []};
  });
  note();
  count();
  report();
}

// Another rate, batch size, pace or freeze list, from the next step on.
function change(message) {
  settings = message.settings;
  for (const lane of lanes) {
    R.freeze(lane.model, settings.frozen);
    trained(lane.model).forEach(name => lane.moved.add(name));
  }
  count();
  report();
}

// Train for some steps, or until every lane's accuracy has been `until` at least, or has been lost.
function run({steps, until: goal}) {
  target = steps ? step + steps : step;
  until = goal || 2;
  begun = performance.now();
  started = step;
  if (target > step && timer === null) next();
  else report();
}

function next() {
  timer = settings.pace ? setTimeout(() => { timer = null; train(); }, 1000 / settings.pace) :
    (again.port2.postMessage(0), 0);
}

function train() {
  const end = performance.now() + SLICE;
  let measured = false;
  while (step < target && lanes.length) {
    const batch = R.draw_batch(task, draws, settings.batch);
    for (const lane of lanes) one_step(lane, batch, !measured);
    measured = true;
    step += 1;
    if (step % stride === 0) note();
    if (lanes.every(l => l.lost || l.recent.length === WINDOW && l.accuracy >= until)) target = step;
    if (performance.now() > end || settings.pace) break;
  }
  if (performance.now() - reported > FRAME || step >= target) report();
  if (step < target) next();
}

function one_step(lane, batch, measure) {
  if (measure && lane.fault) {             // the right gradient at the same weights
    R.learn(lane.model, batch);
    const right = Object.fromEntries(Object.entries(lane.model.parameters).map(
      ([n, p]) => [n, p.grad]));           // the next pass makes new arrays
    lane.engine.learn(lane.model, batch);
    lane.angles = angles(lane.model, right);
  }
  const {loss, accuracy, norm} = lane.engine.train_step(lane.model, batch, settings.rate);
  if (!Number.isFinite(loss + norm)) lane.lost = lane.lost || step + 1;
  lane.recent.push([loss, accuracy]);
  if (lane.recent.length > WINDOW) lane.recent.shift();
  lane.loss = lane.recent.reduce((sum, r) => sum + r[0], 0) / lane.recent.length;
  lane.accuracy = lane.recent.reduce((sum, r) => sum + r[1], 0) / lane.recent.length;
  if (lane.reached === null && lane.recent.length === WINDOW && lane.accuracy >= GOAL)
    lane.reached = step + 1;
}

// What one step multiplies and adds, counted on the batch size and the freeze list of now.
function count() {
  const before = R.work.multiply_adds;
  R.learn(lanes[0].model, R.draw_batch(task, R.generator(0), settings.batch));
  multiply_adds = R.work.multiply_adds - before;
}

const point = ({loss, accuracy, kind, model}) =>
  [step, loss, accuracy, kind === "turned" ? R.match(model) : null];
function note() {                          // a point of every curve
  for (const lane of lanes) lane.curve.push(point(lane));
  if (lanes[0].curve.length <= POINTS) return;
  stride *= 2;
  for (const lane of lanes) lane.curve = lane.curve.filter(([at]) => at % stride === 0);
}

function report() {
  reported = performance.now();
  const running = step < target;
  postMessage({kind: "state", number: answered, step, running, multiply_adds,
    speed: running ? 1000 * (step - started) / Math.max(1, reported - begun) : null,
    lanes: lanes.map(lane => ({loss: lane.loss, accuracy: lane.accuracy, reached: lane.reached,
      lost: lane.lost, norms: norms(lane.model), angles: lane.angles,
      curve: step % stride ? [...lane.curve, point(lane)] : lane.curve,
      parameters: [...lane.moved].map(n => [n, lane.model.parameters[n].data.slice()])}))});
}

const trained = model => Object.keys(model.parameters).filter(n => model.parameters[n].trainable);

// {part: the sum of f over its parameters that have a gradient}.
function by_part(model, f) {
  const sums = {};
  for (const [n, p] of Object.entries(model.parameters))
    if (p.grad) sums[p.part] = (sums[p.part] || 0) + f(p.grad, n);
  return sums;
}
function norms(model) {
  const squares = by_part(model, g => R.dot(g, g));
  return Object.fromEntries(Object.entries(squares).map(([part, s]) => [part, Math.sqrt(s)]));
}
// Between a model's gradient and the right one, in degrees; null where the model's is all 0.
function angles(model, right) {
  const product = by_part(model, (g, n) => R.dot(g, right[n])), own = norms(model);
  const squares = by_part(model, (g, n) => R.dot(right[n], right[n]));
  return Object.fromEntries(Object.keys(product).map(part => {
    const size = own[part] * Math.sqrt(squares[part]), cosine = product[part] / size;
    return [part, size > 0 ? 180 / Math.PI * Math.acos(Math.max(-1, Math.min(1, cosine))) : null];
  }));
}

// A lane of the page as it is now: its engine, its task and its model.
function model_of({settings: {task: name, seed}, lane, parameters}, type) {
  const own = R.TASKS[name], model = R.make_model(config, own, {...trunk, ...lane}, seed, type);
  for (const [n, data] of parameters) model.parameters[n].data.set(data);
  return {E: ENGINES[lane.fault || "right"], own, model};
}

// Gradients of one lane against finite differences in float64, on four examples: the largest one in
// each third of an array's columns, as queries, keys and values are, for each part that is named.
// `parameters` are the lane's, from the page; the check runs in a worker of its own.
function check(message) {
  const {E, own, model} = model_of(message, Float64Array);
  const batch = R.draw_batch(own, R.generator(message.settings.seed, "check"), 4, Float64Array);
  E.learn(model, batch);
  const rows = [];
  for (const [n, p] of Object.entries(model.parameters)) {
    if (!message.parts.includes(p.part)) continue;
    const chosen = [], columns = R.last(p.grad);
    p.grad.forEach((v, i) => {
      const third = Math.floor(3 * (i % columns) / columns);
      if (!(Math.abs(p.grad[chosen[third]]) >= Math.abs(v))) chosen[third] = i;
    });
    const scale = Math.sqrt(R.dot(p.grad, p.grad) / p.grad.length);
    for (const index of Object.values(chosen)) {
      const gradient = p.grad[index], difference = E.numerical_gradient(model, batch, n, index);
      const size = Math.max(Math.abs(gradient), Math.abs(difference), scale, 1e-7);
      rows.push({name: n, part: p.part, index, gradient, difference,
        error: Math.abs(gradient - difference) / size});
    }
  }
  postMessage({kind: "checked", id: message.id, rows});
}

// Each answer's accuracy over all inputs, whole and with the cuts.
function cut(message) {
  const {E, own, model} = model_of(message), examples = R.all_inputs(own);
  const before = E.accuracy_by_token(model, own, examples);
  model.cuts = message.cuts;
  postMessage({kind: "cut", id: message.id, before, after: E.accuracy_by_token(model, own, examples)});
}

// NumPy's reference step again: the largest relative difference of the loss, of the norms of all
// gradients, and of single entries, these relative to the entry or to the root mean square of its
// gradient, whichever is larger; then attention with a cut, turned keys, and eigenvalues.
function agree({id, reference: r}) {
  const model = R.make_model(config, R.TASKS["bit-xor"], {...trunk, kind: "pretrained"}, 0);
  for (const [n, values] of Object.entries(r.outer)) model.parameters[n].data.set(values);
  const x = Float32Array.from(r.x);
  x.shape = [x.length / 10, 10, 1];
  const {loss} = R.learn(model, {x, y: r.y});
  const relative = (a, b, size = Math.abs(b)) => Math.abs(a - b) / (size || 1);
  const differences = [relative(loss, r.loss)];
  const grad = n => model.parameters[n].grad;
  for (const [n, norm] of Object.entries(r.norms))
    differences.push(relative(Math.sqrt(R.dot(grad(n), grad(n))), norm));
  for (const [n, index, value] of r.entries) {
    const mean = r.norms[n] / Math.sqrt(grad(n).length);
    differences.push(relative(grad(n)[index], value, Math.max(Math.abs(value), mean)));
  }
  const shaped = (values, ...shape) => Object.assign(Float64Array.from(values), {shape});
  const largest = values => Math.max(...values.map(Math.abs));
  const same = (theirs, ours) => differences.push(...Array.from(ours, (v, i) =>
    relative(theirs[i], v, largest(ours))));
  same(R.attention(shaped(r.qkv, 1, 4, 12), 2, true, r.cuts)[0], r.cut_output);
  const keys = shaped(r.qkv, 4, 12);
  R.turn_keys(keys, r.degrees);
  same(keys, r.turned);
  same(R.eigen(R.symmetric_form(model)).values, r.eigenvalues);
  postMessage({kind: "agreed", id, difference: Math.max(...differences.map(
    d => Number.isFinite(d) ? d : Infinity))});
}
