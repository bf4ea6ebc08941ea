// What both pages use.
"use strict";
const count = n => n.toLocaleString("en");
const plural = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;

function el(tag, attributes = {}, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attributes)) {
    if (k.startsWith("on")) e.addEventListener(k.slice(2), v);
    else if (v !== null && v !== false && v !== undefined) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.flat().filter(c => c !== null && c !== undefined && c !== false));
  return e;
}
function draw_on(canvas, width, height) {
  const ratio = (window.devicePixelRatio || 1) * (document.body.currentCSSZoom || 1);
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
const bytes = (text, type) => new type(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer);
const D = JSON.parse(document.getElementById("data").textContent);
const say = text => { document.getElementById("said").textContent = text; };
const DARK = window.matchMedia("(prefers-color-scheme: dark)");
// The colour of a number from -1 to 1 as red, green and blue: blue below 0, orange above.
const zero_color = dark => dark ? [34, 43, 49] : [250, 250, 248];
const mixed = (a, b, share) => a.map((v, i) => Math.round(v + (b[i] - v) * share));
function signed_color(v, dark) {
  const [below, above] = dark ? [[96, 165, 245], [245, 150, 60]] : [[28, 88, 160], [196, 84, 0]];
  return mixed(zero_color(dark), v < 0 ? below : above, Math.abs(v) ** 0.7);
}
const STILL = window.matchMedia("(prefers-reduced-motion: reduce)");
