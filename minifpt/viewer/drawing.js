// What is drawn on canvases: the flow of numbers through the model, and the curves.

const DARK = window.matchMedia("(prefers-color-scheme: dark)");
const STYLE = getComputedStyle(document.documentElement), colors = {};
const paint = name => colors[name] || (colors[name] = STYLE.getPropertyValue(name).trim());
DARK.addEventListener("change", () => { for (const name in colors) delete colors[name]; });
const HEADS = ["--head-1", "--head-2", "--head-3", "--head-4"];
const LANES = ["--lane-1", "--lane-2", "--lane-3"], DASHES = [[], [7, 3], [2, 3]];

function draw_on(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    [canvas.width, canvas.height] = [w, h];
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const g = canvas.getContext("2d");
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return g;
}

function mix(from, to, share) {
  return `rgb(${from.map((v, i) => Math.round(v + (to[i] - v) * share)).join(",")})`;
}
function color_of(value, limit) {          // blue below 0, orange above
  const t = Math.max(-1, Math.min(1, value / limit)), share = Math.pow(Math.abs(t), 0.7);
  const zero = DARK.matches ? [34, 43, 49] : [250, 250, 248];
  return mix(zero, t < 0 ? (DARK.matches ? [96, 165, 245] : [28, 88, 160]) :
    (DARK.matches ? [245, 150, 60] : [196, 84, 0]), share);
}

// Numbers of one token as a strip of cells.
function strip(g, values, x, y, width, height) {
  let size = 0;
  for (const v of values) size += v * v;
  const limit = 2 * Math.sqrt(size / values.length) || 1;
  const lines = values.length > width / 2 ? Math.ceil(values.length / (width / 3)) : 1;
  const columns = Math.ceil(values.length / lines), w = width / columns, h = height / lines;
  for (let i = 0; i < values.length; i++) {
    g.fillStyle = color_of(values[i], limit);
    g.fillRect(x + (i % columns) * w, y + Math.floor(i / columns) * h, w + 0.4, h + 0.4);
  }
  g.strokeStyle = paint("--edge");
  g.lineWidth = 1;
  g.strokeRect(x - 0.5, y - 0.5, width + 1, height + 1);
}

// The whole flow.  `rows` are {kind, output, cache, top, height} from the top down; `look` is a
// token whose attention is drawn alone, or null.
function draw_flow(canvas, rows, cache, {tokens, width, height, look, heads, read}) {
  const g = draw_on(canvas, width, height), column = width / tokens;
  const middle = t => (t + 0.5) * column, w = Math.min(column - 6, 84);
  const soft = paint("--soft"), stream = paint("--stream");
  for (let t = 0; t < tokens; t++) {       // what flows down each column: the residual stream
    const cut = t >= tokens - read;
    g.strokeStyle = stream;
    g.lineWidth = 5;
    g.beginPath();
    g.moveTo(middle(t), 0);
    g.lineTo(middle(t), cut ? height : height - 30);
    g.stroke();
  }
  for (const row of rows) {
    const y = row.top, h = row.height;
    if (row.kind === "attention") {
      attention_lines(g, cache[row.cache], {y, h, middle, look, heads, tokens, soft});
    } else if (row.output) {
      const values = cache.outputs[row.output], C = values.length / values.shape[1];
      const first = tokens - values.shape[1];
      for (let t = first; t < tokens; t++)
        strip(g, values.subarray((t - first) * C, (t - first + 1) * C), middle(t) - w / 2, y + 4, w,
          h - 8);
    }
  }
}

function attention_lines(g, {probabilities}, {y, h, middle, look, heads, tokens}) {
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
  if (look === null) return;
  g.font = `600 12px ${paint("--sans")}`;
  g.textAlign = "center";
  for (let key = 0; key < T; key++) {      // how much of the look goes where, head by head
    for (let head = 0; head < H; head++) {
      const p = probabilities[(head * T + look) * T + key];
      if (!heads[head] || p < 0.1) continue;
      const x = middle(key), at = y + 13 + 14 * head, text = `${Math.round(100 * p)} %`;
      g.lineWidth = 4;
      g.strokeStyle = paint("--paper");
      g.strokeText(text, x, at);
      g.fillStyle = paint(HEADS[head % HEADS.length]);
      g.fillText(text, x, at);
    }
  }
}

// Accuracy above, loss below, against steps; `lanes` are {curve}, lists of [step, loss, accuracy].
function draw_curves(canvas, lanes, chance) {
  const width = canvas.parentElement.clientWidth, height = 196, left = 46, right = width - 8;
  const g = draw_on(canvas, width, height), end = curve => curve[curve.length - 1];
  const steps = Math.max(50, ...lanes.map(({curve}) => end(curve)[0]));
  const losses = lanes.flatMap(({curve}) => curve.map(p => p[1])).filter(Number.isFinite);
  const most = Math.max(0.8, ...losses.map(v => Math.min(v, 3))), low = chance - 0.15;
  const panels = [
    {title: "accuracy", top: 20, bottom: 112, value: p => (p[2] - low) / (1 - low),
      marks: [[1, "100 %"], [(chance - low) / (1 - low), "chance"]]},
    {title: "loss", top: 132, bottom: 178, value: p => p[1] / most,
      marks: [[1, most.toFixed(1)], [0, "0"]]}];
  const x = step => left + (right - left - 4) * step / steps;
  g.font = `11.5px ${paint("--sans")}`;
  for (const {title, top, bottom, value, marks} of panels) {
    const y = v => Number.isFinite(v) ?
      bottom - (bottom - top) * Math.max(0, Math.min(1.05, v)) : top;
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
    lanes.forEach(({curve}, n) => {
      g.strokeStyle = g.fillStyle = paint(LANES[n]);
      g.lineWidth = 2;
      g.setLineDash(DASHES[n]);
      g.beginPath();
      curve.forEach((p, i) => g[i ? "lineTo" : "moveTo"](x(p[0]), y(value(p))));
      g.stroke();
      g.setLineDash([]);
      g.beginPath(); g.arc(x(end(curve)[0]), y(value(end(curve))), 3.5, 0, 7); g.fill();
    });
  }
  g.fillStyle = paint("--soft");
  g.fillText("0", left, 192);
  g.textAlign = "right";
  g.fillText(`${steps.toLocaleString("en")} steps`, right, 192);
}
