// The canvases: the flow of numbers through the model, and the curves.

const PRINT = window.matchMedia("print");
const STYLE = getComputedStyle(document.documentElement), colors = {};
const paint = name => colors[name] || (colors[name] = STYLE.getPropertyValue(name).trim());
for (const media of [DARK, PRINT]) media.addEventListener("change", () => {
  for (const name in colors) delete colors[name];
  table = null;
  draw();                                  // at once: paper does not wait for a frame
});
const HEADS = ["--head-1", "--head-2", "--head-3", "--head-4"];
const LANES = ["--lane-1", "--lane-2", "--lane-3"], DASHES = [[], [7, 3], [2, 3]];
// Of a trunk in the race; where all have turned keys, that of the patterns it starts in, or grey.
const lane_color = n => !models[n] || models.some(m => m.kind !== "turned") ? LANES[n] :
  {opposed: "--minus", aligned: "--plus", drawn: "--lane-3"}[models[n].start];

let table = null;                          // 511 colours, of -1 to 1
const color_table = () => Array.from({length: 511}, (_, i) =>
  signed_color((i - 255) / 255, DARK.matches && !PRINT.matches));

// The numbers of each token as a strip of cells: values (tokens, C), each strip at its left end.
// A colour is as strong as a number is large among the token's.
const small = document.createElement("canvas");            // a pixel for each number
function strips(g, values, C, lefts, y, width, height) {
  table = table || color_table();
  const lines = C > width / 2 ? Math.ceil(C / (width / 3)) : 1, columns = Math.ceil(C / lines);
  [small.width, small.height] = [columns, lines * lefts.length];
  const ink = small.getContext("2d", {willReadFrequently: true});
  const pixels = ink.createImageData(small.width, small.height);
  lefts.forEach((_, t) => {
    let square = 0;
    for (let i = t * C; i < (t + 1) * C; i++) square += values[i] * values[i];
    const limit = 2 * Math.sqrt(square / C) || 1;
    for (let i = 0; i < C; i++) {
      const level = Math.round(255 * Math.max(-1, Math.min(1, values[t * C + i] / limit)));
      const at = 4 * (t * lines * columns + i);
      pixels.data.set(table[255 + (level || 0)], at);
      pixels.data[at + 3] = 255;
    }
  });
  ink.putImageData(pixels, 0, 0);
  g.imageSmoothingEnabled = false;
  g.strokeStyle = paint("--edge");
  g.lineWidth = 1;
  lefts.forEach((x, t) => {
    g.drawImage(small, 0, t * lines, columns, lines, x, y, width, height);
    g.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
  });
}

// The whole flow.  `rows` are {kind, output, cache, top, size} from the top down; `look` is a
// token whose attention is drawn alone, or null; `cuts` are pairs [query, key]; `trip` is a bit that
// travels, {query, key, bit, at}, with `at` from 0 to 1, or null.
function draw_flow(canvas, rows, cache, {tokens, width, height, look, heads, read, cuts, trip}) {
  const g = draw_on(canvas, width, height), column = width / tokens;
  const middle = t => (t + 0.5) * column, w = Math.min(column - 6, 84);
  const soft = paint("--soft"), stream = paint("--stream");
  for (let t = 0; t < tokens; t++) {       // what flows down each column: the residual stream
    const cut = t >= tokens - read;
    g.strokeStyle = stream;
    g.lineWidth = 5;
    g.beginPath(); g.moveTo(middle(t), 0); g.lineTo(middle(t), cut ? height : height - 30); g.stroke();
  }
  for (const row of rows) {
    const y = row.top, h = row.size;
    if (has_lines(row)) {
      attention_lines(g, cache[row.cache].probabilities, {y, h, width, middle, look, heads, cuts});
    } else if (row.output) {
      const values = cache.outputs[row.output], read_here = values.shape[1];
      const lefts = Array.from({length: read_here}, (_, i) => middle(tokens - read_here + i) - w / 2);
      strips(g, values, values.length / read_here, lefts, y + 4, w, h - 8);
    }
  }
  if (trip) draw_trip(g, rows.filter(has_lines), cache, trip, {middle, height, cuts});
}

// A token's bit on its way: down its column, along the strongest line to the token that looks, and down
// to its answer; a cut stops it.
function draw_trip(g, rows, cache, {query, key, bit, at}, {middle, height, cuts}) {
  const lines = rows.flatMap(row => {
    const {probabilities} = cache[row.cache], [, H, T] = probabilities.shape;
    return Array.from({length: H}, (_, head) => ({row, p: probabilities[(head * T + query) * T + key]}));
  });
  const {row, p} = lines.reduce((a, b) => b.p > a.p ? b : a), is_stopped = cuts.some(([q, k]) => q === query && k === key);
  if (p < 0.25 && !is_stopped) return;     // it does not look there
  const [x, to, y, h] = [middle(key), middle(query), row.top, row.size];
  const place = s => {                     // of a share of the way: a quarter down, half along the line
    if (s < 0.25) return [x, 4 * s * y];
    if (s > 0.75) return [to, y + h + 4 * (s - 0.75) * (height - y - h)];
    const u = 2 * s - 0.5, bend = (a, b, c, d) => (1 - u) ** 3 * a + 3 * u * (1 - u) ** 2 * b + 3 * u * u * (1 - u) * c + u ** 3 * d;
    return [bend(x, x, to, to), bend(y + 2, y + 0.45 * h, y + 0.55 * h, y + h - 2)];
  };
  const end = Math.min(at, is_stopped ? 0.47 : 1), [left, top] = place(end);
  g.strokeStyle = paint("--ink");
  g.lineWidth = 3;
  g.beginPath();
  for (let n = 0; n <= 60; n++) g.lineTo(...place(end * n / 60));
  g.stroke();
  g.fillStyle = paint(bit ? "--one" : "--zero");
  g.beginPath(); g.arc(left, Math.min(top, height - 13), 12, 0, 7); g.fill(); g.stroke();
  g.fillStyle = paint(bit ? "--on-one" : "--ink");
  g.font = `700 15px ${paint("--mono")}`;
  g.textAlign = "center";
  g.fillText(bit, left, Math.min(top, height - 13) + 5);
}

function attention_lines(g, probabilities, {y, h, width, middle, look, heads, cuts}) {
  const [, H, T] = probabilities.shape, spread = H > 1 ? Math.min(8, 20 / H) : 0;
  const order = Array.from({length: H * T * T}, (_, i) => i)
    .filter(i => probabilities[i] > 0.03 && heads[Math.floor(i / (T * T))])
    .sort((a, b) => probabilities[a] - probabilities[b]);
  for (const i of order) {
    const head = Math.floor(i / (T * T)), query = Math.floor(i / T) % T, key = i % T;
    const p = probabilities[i], shift = (head - (H - 1) / 2) * spread;
    const faded = look !== null && look !== query;
    g.globalAlpha = faded ? 0.06 : 0.15 + 0.8 * p;
    g.strokeStyle = paint(HEADS[head % HEADS.length]);
    g.lineWidth = 0.5 + 8 * p;
    g.beginPath();
    g.moveTo(middle(key) + shift, y + 2);
    g.bezierCurveTo(middle(key) + shift, y + 0.45 * h, middle(query) + shift, y + 0.55 * h,
      middle(query) + shift, y + h - 2);
    g.stroke();
  }
  g.globalAlpha = 1;
  for (const [query, key] of cuts) {
    g.strokeStyle = paint("--red");
    g.lineWidth = 2;
    g.setLineDash([3, 4]);
    g.beginPath(); g.moveTo(middle(key), y + 2); g.lineTo(middle(query), y + h - 2); g.stroke();
    g.setLineDash([]);
    g.font = `18px ${paint("--sans")}`;
    g.textAlign = "center";
    g.fillStyle = paint("--red");
    g.fillText("✂", (middle(key) + middle(query)) / 2, y + h / 2 + 6);
  }
  if (look === null) return;
  g.textAlign = "center";
  for (let key = 0; key < T; key++) {      // how much of the look goes where, head by head
    for (let head = 0; head < H; head++) {
      const p = probabilities[(head * T + look) * T + key];
      if (!heads[head] || p < 0.1) continue;
      const narrow = width < 34 * T, text = `${Math.round(100 * p)}${narrow ? "" : " %"}`;
      g.font = `600 ${narrow ? 10 : 12}px ${paint("--sans")}`;
      const x = Math.max(16, Math.min(width - 16, middle(key))), at = y + 13 + 14 * head;
      const half = g.measureText(text).width / 2 + 2;
      g.fillStyle = paint("--paper");
      g.fillRect(x - half, at - 11, 2 * half, 13);          // a plate, or the line strikes it out
      g.fillStyle = paint(HEADS[head % HEADS.length]);
      g.fillText(text, x, at);
    }
  }
}

// Accuracy above, loss below, against steps; where a block's keys are turned, its match instead of
// the loss. `lanes` are {curve}, lists of [step, loss, accuracy, match]; `earlier` are runs before
// this one, {label, lanes}, drawn thin.
function draw_curves(canvas, lanes, {chance, floor}, [width, height], earlier) {
  const middle = Math.round(0.6 * height), left = 46, right = width - 8;
  const g = draw_on(canvas, width, height), end = curve => curve[curve.length - 1];
  const before = earlier.map(({label, lanes: [{curve}]}) => ({label, curve}));
  const steps = Math.max(200, ...[...lanes, ...before].map(({curve}) => end(curve)[0]));
  const losses = lanes.flatMap(({curve}) => curve.map(p => p[1])).filter(Number.isFinite);
  const most = Math.max(0.8, ...losses.map(v => Math.min(v, 3))), low = Math.min(chance, 0.6) - 0.15;
  const has_match = lanes.every(({curve}) => end(curve)[3] !== null);
  const panels = [
    {title: `right answers (${percent(chance)}: ${floor})`, top: 20, bottom: middle - 6, value: p => (p[2] - low) / (1 - low),
      marks: [[1, "100 %"], [(chance - low) / (1 - low), percent(chance)]]},
    has_match ? {title: "above 0: tokens look at their like", top: middle + 14, bottom: height - 18,
      value: p => (p[3] + 4) / 8, marks: [[1, "4"], [0.5, "0"], [0, "−4"]]} :
      {title: "loss: how wrong it is", top: middle + 14, bottom: height - 18, value: p => p[1] / most,
        marks: [[1, most.toFixed(1)], [0, "0"]]}];
  const x = step => left + (right - left - 4) * step / steps;
  g.font = `11.5px ${paint("--sans")}`;
  for (const {title, top, bottom, value, marks} of panels) {
    const y = v => Number.isFinite(v) ? bottom - (bottom - top) * Math.max(0, Math.min(1.05, v)) : top;
    g.strokeStyle = paint("--line");
    g.fillStyle = paint("--soft");
    g.lineWidth = 1;
    g.textAlign = "right";
    for (const [v, text] of marks) {
      g.beginPath(); g.moveTo(left, y(v)); g.lineTo(right, y(v)); g.stroke();
      g.fillText(text, left - 5, y(v) + 4);
    }
    g.textAlign = "left";
    g.fillText(title, left, top - 5);
    [...before, ...lanes].forEach(({curve, label}, i) => {
      const n = i - before.length;
      g.strokeStyle = g.fillStyle = paint(n < 0 ? "--soft" : lane_color(n));
      g.lineWidth = n < 0 ? 1 : 2;
      g.setLineDash(DASHES[n] || []);
      g.beginPath();
      curve.forEach((p, at) => g[at ? "lineTo" : "moveTo"](x(p[0]), y(value(p))));
      g.stroke();
      g.setLineDash([]);
      const [h, v] = [x(end(curve)[0]), y(value(end(curve)))];
      if (n >= 0) {
        g.beginPath(); g.arc(h, v, 3.5, 0, 7); g.fill();
      } else if (top < 100)                // labels below, above, and further below
        g.fillText(label, Math.min(h + 3, right - 6 * label.length), v + [13, -5, 26][i % 3]);
    });
  }
  g.fillStyle = paint("--soft");
  g.fillText("0", left, height - 4);
  g.textAlign = "right";
  g.fillText(`${steps.toLocaleString("en")} steps`, right, height - 4);
}

// The frozen numbers as a histogram, and the eigenvalues as bars, the largest on top.
function draw_form(canvas, {keys, values}, [width, height]) {
  const scale = (height - 30) / 120, half = width / 2 - 10, g = draw_on(canvas, width, height), bins = 41;
  const spread = Math.sqrt(keys.reduce((sum, v) => sum + v * v, 0) / keys.length);
  const counts = Array(bins).fill(0);
  for (const v of keys) {
    const bin = Math.floor((v / spread + 4) / 8 * bins);
    if (bin >= 0 && bin < bins) counts[bin] += 1;
  }
  g.fillStyle = paint("--edge");
  counts.forEach((c, i) => g.fillRect(half * i / bins, height - 18 - 120 * scale * c / 350, half / bins - 1, 120 * scale * c / 350));
  g.fillStyle = paint("--soft");
  g.font = `11.5px ${paint("--sans")}`;
  g.textAlign = "center";
  g.fillText(`4,096 numbers, about ±${spread.toFixed(1)}`, half / 2, height - 3);
  const largest = Math.max(...values.map(Math.abs)), middle = half + 20 + half / 2;
  [["0", 0], [half < 220 ? "← away" : "← looks away", -1], [half < 220 ? "at its like →" : "looks at its like →", 1]]
    .forEach(([text, side]) => g.fillText(text, middle + side * half * 0.28, height - 3));
  g.fillRect(half + 20, height - 17, half, 1);
  [...values].reverse().forEach((v, i) => {
    const size = half / 2 * v / largest;
    g.fillStyle = paint(v > 0 ? "--plus" : "--minus");
    g.fillRect(Math.min(middle, middle + size), 4 + 2 * scale * i, Math.abs(size), 1.5 * scale);
  });
}
