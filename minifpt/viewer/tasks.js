// The tasks of the playground in plain JavaScript, after minifpt/tasks/bits.py.
//
// An example is a list of bits and, for bit memory, what is asked for.  `inputs` are the numbers
// that the model gets, tokens x input_dim; `answers` are the classes that it should choose; `needs`
// are the tokens that the answer at token t depends on.
"use strict";

const TASKS = {
  // Two strings of five bits come in, one bit a token; their XOR goes out.
  "bit-xor": {
    title: "bit XOR", tokens: 10, input_dim: 1, output_dim: 2, output_tokens: 5, chance: 0.5,
    names: ["a1", "a2", "a3", "a4", "a5", "b1", "b2", "b3", "b4", "b5"],
    draw: rng => ({bits: Array.from({length: 10}, rng.bit)}),
    inputs: ({bits}) => bits,
    answers: ({bits}) => bits.slice(5).map((b, i) => b ^ bits[i]),
    needs: (example, t) => t < 5 ? [] : [t - 5, t],
  },
  // Ten bits come in; at each token: have there been more ones than zeros so far?
  "majority": {
    title: "majority", tokens: 10, input_dim: 1, output_dim: 2, output_tokens: 10, chance: 0.5,
    names: ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"],
    draw: rng => ({bits: Array.from({length: 10}, rng.bit)}),
    inputs: ({bits}) => bits,
    answers: ({bits}) => {
      let sum = 0;
      return bits.map(b => (sum += 2 * b - 1) > 0 ? 1 : 0);
    },
    needs: (example, t) => Array.from({length: t + 1}, (_, i) => i),
  },
  // Two strings of eight bits come in, two bits a token, then one of them again, half masked; it
  // goes out whole.  A bit is -1 or 1, a masked one 0.
  "bit-memory": {
    title: "bit memory", tokens: 12, input_dim: 2, output_dim: 4, output_tokens: 4, chance: 0.75,
    names: ["1.1", "1.2", "1.3", "1.4", "2.1", "2.2", "2.3", "2.4", "?.1", "?.2", "?.3", "?.4"],
    draw: rng => ({bits: Array.from({length: 16}, rng.bit), which: rng.bit(),
      visible: Array.from({length: 8}, rng.bit)}),
    inputs: ({bits, which, visible}) => [...bits.map(b => 2 * b - 1),
      ...visible.map((v, i) => v * (2 * bits[8 * which + i] - 1))],
    answers: ({bits, which}) => bits.slice(8 * which, 8 * which + 8),
    needs: ({which}, t) => t < 8 ? [] : [4 * which + t - 8, t],
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
