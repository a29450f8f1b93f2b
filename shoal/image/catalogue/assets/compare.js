// What differs between two images: what was measured, then packages. `shoal diff` says the same of two manifests.

function differences(before, after) {
  const found = [];
  const collect = (kind, old, now) => {
    for (const name of [...new Set([...Object.keys(old), ...Object.keys(now)])].sort(collator.compare)) {
      if (old[name] !== now[name]) found.push({ kind, name, before: old[name], after: now[name] });
    }
  };
  const group = (image, kind) =>
    Object.fromEntries(image.packages.filter((one) => one[0] === kind).map(([, name, version]) => [name, version]));
  collect("image", before.facts, after.facts);
  for (const kind of ["python", "debian"]) collect(kind, group(before, kind), group(after, kind));
  return found;
}

const changeOf = ({ before, after }) => (before === undefined ? "added" : after === undefined ? "removed" : "changed");

function describe(before, after, found) {
  const count = (what) => found.filter((one) => one.kind !== "image" && changeOf(one) === what).length;
  const delta = (after.size_bytes - before.size_bytes) / 1e6;
  const size = `${(after.size_bytes / 1e6).toFixed(0)} MB, ${delta < 0 ? "−" : "+"}${Math.abs(delta).toFixed(1)} MB`;
  return `${size}. Packages: ${count("added")} added, ${count("removed")} removed, ${count("changed")} changed.`;
}

function badge(text) {
  const span = document.createElement("span");
  span.className = `badge ${text}`;
  span.textContent = text;
  return span;
}

function showDifference(images) {
  const [before, after] = ["before", "after"].map((id) => images.get(document.getElementById(id).value));
  const table = document.getElementById("difference-table");
  const found = differences(before, after);
  table.hidden = !found.length;
  document.getElementById("difference").textContent =
    before === after ? "Choose two images." : found.length ? describe(before, after, found) : "No version differs.";
  table.tBodies[0].replaceChildren(...found.map((one) => {
    const row = tableRow([one.kind, one.name, one.before ?? "–", one.after ?? "–", badge(changeOf(one))]);
    row.cells[2].className = "from";
    row.cells[3].className = "to";
    return row;
  }));
  sortAgain(table);
}

function offerComparison(images, remember) {
  const [before, after] = ["before", "after"].map((id) => document.getElementById(id));
  if (!before) return;
  const changed = () => {
    showDifference(images);
    remember(`compare=${before.value}..${after.value}`);
  };
  before.addEventListener("change", changed);
  after.addEventListener("change", changed);
  document.getElementById("swap").addEventListener("click", () => {
    [before.value, after.value] = [after.value, before.value];
    changed();
  });
  showDifference(images);
}
