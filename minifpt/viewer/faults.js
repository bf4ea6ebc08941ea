// What the page does with the faults of faults.py: `javascript` are pairs of text, right and wrong.
"use strict";
const FAULTS = JSON.parse(document.getElementById("data").textContent).faults;

// The engine's text with a fault in it, as an expression whose value is an object of its functions.
function engine_text(source, fault) {
  for (const [right, wrong] of fault ? fault.javascript : []) {
    if (source.split(right).length !== 2) throw new Error(`${fault.id}: not one line ${right}`);
    source = source.replace(right, () => wrong);
  }
  const names = Array.from(source.matchAll(/^(?:function|const) (\w+)/gm), m => m[1]);
  return `(() => {${source}\nreturn {${names.join(", ")}};})()`;
}
