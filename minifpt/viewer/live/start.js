// Begin: with the address, and with the comparison with NumPy.

history.scrollRestoration = "manual";      // a page opens at its top
Object.assign(S, read_address());
restart();
show_controls();
show_panel();
show_station();
ask({kind: "agree", reference: D.reference}, "agreed").then(({difference}) => {
  agreement = difference;
  if (stopped) return;
  const good = difference < 1e-4;
  by("agreement").className = `badge ${good ? "good" : "bad"}`;
  by("agreement").textContent = good ?
    `✓ agrees with NumPy to ${difference.toExponential(0).replace("-", "−")}` :
    `This page differs from NumPy by ${short(difference)}: do not trust its numbers`;
});
requestAnimationFrame(frame);
