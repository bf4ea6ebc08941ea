"""Twenty draws of a race: novels against random weights on bit XOR, in the live page and in Python.

    python -m studies.races

Each run is a row of ``results/races.csv``: the steps until the mean accuracy of 50 batches in a row
is 95 %.  *page* is the model of the live page, run by its own JavaScript, which needs Node;
*lesson* is the model of lesson 0 and of ``minifpt train bit-xor``.
"""

import base64
import json
import shutil
import subprocess

import numpy as np

import minifpt
from minifpt.viewer import read
from minifpt.viewer.live import page as playground
from studies.runs import RESULTS, write_rows

SEEDS, WINDOW, GOAL, MOST = 20, 50, 0.95, 3000
COLUMNS = "model", "trunk", "seed", "reached"
PAGE = {"minigpt-language": ("pretrained", 1), "random": ("paper", 0.55)}    # its kind and scale
RACE = """
const page = JSON.parse(require("fs").readFileSync(0));
const arrays = Object.fromEntries(Object.entries(page.arrays).map(
  ([name, a]) => [name, Object.assign(Float32Array.from(a.data), {shape: a.shape})]));
const trunk = {statistics: page.statistics, arrays};
const task = TASKS["bit-xor"];
for (let seed = 0; seed < page.seeds; seed++) {
  const model = make_model(page.config, task, {...trunk, kind: page.kind, scale: page.scale}, seed);
  freeze(model, ["attn", "mlp"]);
  const draws = generator(seed, "batches"), recent = [];
  let step = 0;
  while (step < page.most && (recent.length < page.window ||
         recent.reduce((a, b) => a + b, 0) / page.window < page.goal)) {
    recent.push(train_step(model, draw_batch(task, draws, 4), 3e-3).accuracy);
    if (recent.length > page.window) recent.shift();
    step++;
  }
  console.log(step);
}
"""


def on_the_page(trunk):
    """Return the steps of each seed, by the page's JavaScript."""
    data = playground.page_data()
    numbers, arrays = np.frombuffer(base64.b64decode(data["weights"]), "<f2").tolist(), {}
    for name, shape in data["trunk"]:
        size = int(np.prod(shape))
        arrays[name], numbers = {"shape": shape, "data": numbers[:size]}, numbers[size:]
    kind, scale = PAGE[trunk]
    settings = {"config": data["config"], "statistics": data["statistics"], "arrays": arrays,
                "kind": kind, "scale": scale, "seeds": SEEDS, "window": WINDOW, "goal": GOAL,
                "most": MOST}
    code = 'const FAULT = "";\n' + "".join(map(read, playground.ENGINE)) + RACE
    output = subprocess.run([shutil.which("node"), "-e", code], input=json.dumps(settings),
                            capture_output=True, text=True, check=True).stdout
    return map(int, output.split())


def in_python(trunk):
    """Return the steps of each seed, by ``minifpt.train`` with the task's settings."""
    task = minifpt.tasks.get("bit-xor")
    for seed in range(SEEDS):
        recent = []

        def is_behind(run, recent=recent):
            recent.append(run.accuracy)
            return len(recent) < WINDOW or np.mean(recent[-WINDOW:]) < GOAL
        minifpt.train(minifpt.FPT.for_task(task, trunk, seed=seed), task, MOST, seed=seed,
                      eval_every=MOST, test_examples=8, progress=False, callback=is_behind)
        yield len(recent)


def main():
    rows = [dict(zip(COLUMNS, (model, trunk, seed, steps), strict=True))
            for model, race in (("page", on_the_page), ("lesson", in_python))
            for trunk in PAGE for seed, steps in enumerate(race(trunk))]
    write_rows(RESULTS / "races.csv", rows, COLUMNS)


if __name__ == "__main__":
    main()
