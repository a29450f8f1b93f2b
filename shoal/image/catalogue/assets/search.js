// The search field: rows that have all words in their cells or tags stay, and packages that match are listed with their images.

const MOST_SHOWN = 200;

// Packages of all images, each name and version once, with the images that have it.
function indexPackages(images) {
  const index = new Map();
  for (const image of images.values()) {
    for (const one of image.packages) {
      const key = one.slice(0, 3).join("\0");
      if (!index.has(key)) index.set(key, { one, images: [] });
      index.get(key).images.push(image);
    }
  }
  return [...index.values()];
}

// Which rows match by themselves. With a package search, a row also counts when an image of it has the package.
function rowsOf(entries, wanted) {
  const texts = new Map(entries.map((entry) => {
    const declared = Object.values(entry.declared ?? {}).filter((value) => typeof value !== "object");
    const built = entry.images.flatMap((image) => [image.reference, ...image.tags, ...Object.values(image.facts)]);
    const state = [built.length ? "built" : "declared", entry.support ? stateOn(today(), entry.declared) : ""];
    return [entry.id, [entry.id, ...state, ...entry.tags, ...declared, ...built].join(" ").toLowerCase()];
  }));
  return new Set(entries.filter((entry) => wanted.every((word) => texts.get(entry.id).includes(word))).map((entry) => entry.id));
}

// Of each row the newest image that has the package; an older one only where no newer one has it.
function holders(images) {
  const first = new Map();
  for (const image of images) if (!first.has(image.entry)) first.set(image.entry, image);
  return [...first.values()];
}

function showFound(found) {
  const table = document.getElementById("found-table");
  table.tBodies[0].replaceChildren(...found.slice(0, MOST_SHOWN).map(({ one: [kind, name, version, licence], images }) => {
    const links = holders(images).map((image) => link(image.id, image.entry + (image.older ? " (older)" : "")));
    return tableRow([name, version, kind, licence || "–", links.flatMap((a, at) => (at ? [", ", a] : [a]))]);
  }));
  sortAgain(table);
  const more = found.length > MOST_SHOWN ? `, the first ${MOST_SHOWN} are shown` : "";
  document.getElementById("found-count").textContent =
    found.length ? `${found.length} ${found.length === 1 ? "package" : "packages"}${more}` : "No package has that name, version or licence.";
}

function search(query, entries, index) {
  const wanted = words(query);
  document.getElementById("found").hidden = !wanted.length;
  const found = wanted.length ? index.filter(({ one }) => matchesPackage(one, wanted)) : [];
  if (wanted.length) showFound(found);
  const rows = rowsOf(entries, wanted);
  for (const { images } of found) for (const image of images) rows.add(image.entry);
  for (const element of document.querySelectorAll("[data-entry]")) element.hidden = !rows.has(element.dataset.entry);
  document.getElementById("no-rows").hidden = rows.size > 0;
}
