// Sets the colours before the first paint; a classic script, so that nothing flashes.
(() => {
  let chosen = "auto";
  try {
    chosen = localStorage.getItem("airlock.theme") || "auto";
  } catch {
    // No storage, as in a file of a report: the system's colours then.
  }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
