// The tasks of the playground in plain JavaScript, after minifpt/tasks/bits.py.
//
// An example is a list of bits and, for bit memory, what is asked for.  `inputs` are the numbers
// that the model gets, tokens x input_dim; `answers` are the classes that it should choose; `needs`
// are the tokens that the answer at token t depends on; `settings` are a good rate and batch size.

const TEN_BITS = {tokens: 10, input_dim: 1, output_dim: 2, chance: 0.5, floor: "guessed",
  settings: {rate: 3e-3, batch: 4}, inputs: ({bits}) => bits,
  draw: rng => ({bits: Array.from({length: 10}, rng.bit)})};
const TASKS = {
  // Two strings of five bits come in, one bit a token; their XOR goes out.
  "bit-xor": {...TEN_BITS, title: "bit XOR", output_tokens: 5,
    names: ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "b4", "b5"],
    answers: ({bits}) => bits.slice(5).map((b, i) => b ^ bits[i]),
    needs: (example, t) => t < 5 ? [] : [t - 5, t],
  },
  // Ten bits come in; at each token: have there been more ones than zeros so far?
  "majority": {...TEN_BITS, title: "majority", output_tokens: 10,
    names: ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"],
    answers: ({bits}) => bits.map((b, i) => Number(2 * bits.slice(0, i + 1).filter(c => c).length > i + 1)),
    needs: (example, t) => Array.from({length: t + 1}, (_, i) => i),
  },
  // Three strings of twelve bits come in, each of them a token, then one of them again, half
  // masked; it goes out whole.  A bit is -1 or 1, a masked one 0.
  "bit-memory": {
    title: "bit memory", tokens: 4, input_dim: 12, output_dim: 24, output_tokens: 1, chance: 0.75,
    floor: "hidden bits guessed", names: ["string 1", "string 2", "string 3", "again"],
    draw: rng => ({bits: Array.from({length: 36}, rng.bit), which: Math.floor(3 * rng.uniform()),
      visible: Array.from({length: 12}, rng.bit)}),
    inputs: ({bits, which, visible}) => [...bits.map(b => 2 * b - 1),
      ...visible.map((v, i) => v * (2 * bits[12 * which + i] - 1))],
    answers: ({bits, which}) => bits.slice(12 * which, 12 * which + 12),
    needs: ({which}, t) => t < 3 ? [] : [which, 3], settings: {rate: 0.01, batch: 16},
  },
};

// A batch of examples: x (B, tokens, input_dim) and y, one class for each choice.
function batch_of(task, examples, type = Float32Array) {
  const x = type.from(examples.flatMap(task.inputs)), y = examples.flatMap(task.answers);
  x.shape = [examples.length, task.tokens, task.input_dim];
  return {x, y};
}
function draw_batch(task, rng, size, type = Float32Array) {
  return batch_of(task, Array.from({length: size}, () => task.draw(rng)), type);
}

// All inputs of ten bits; of bit memory, which has too many, 512 that are drawn.
function all_inputs(task) {
  const rng = generator(0, "all");
  const bits = n => Array.from({length: 10}, (_, i) => n >> i & 1);
  return task.input_dim === 1 ? Array.from({length: 1024}, (_, n) => ({bits: bits(n)})) :
    Array.from({length: 512}, () => task.draw(rng));
}
// The share of right answers at each token that is read.
function accuracy_by_token(model, task, examples) {
  const {x, y} = batch_of(task, examples), chosen = choices(forward(model, x)[0], y.length);
  const each = y.length / examples.length / task.output_tokens;
  const right = Array(task.output_tokens).fill(0);
  chosen.forEach((c, n) => { right[Math.floor(n / each) % right.length] += c === y[n]; });
  return right.map(n => n / each / examples.length);
}
