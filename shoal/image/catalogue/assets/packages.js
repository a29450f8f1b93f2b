// Tables of packages: made when they are opened, because a catalogue of many images has tens of thousands of lines.

function tableRow(cells) {
  const row = document.createElement("tr");
  for (const cell of cells) {
    const td = document.createElement("td");
    td.append(...[cell].flat());
    row.append(td);
  }
  return row;
}

function link(target, text) {
  const a = document.createElement("a");
  a.href = `#${target}`;
  a.textContent = text;
  return a;
}

function fillPackages(details, image) {
  const table = details.querySelector("table");
  const filter = details.querySelector(".package-filter");
  const show = () => {
    const wanted = words(filter.value);
    const shown = image.packages.filter((one) => matchesPackage(one, wanted));
    table.tBodies[0].replaceChildren(
      ...shown.map(([kind, name, version, licence]) => tableRow([name, version, kind, licence || "–"])),
    );
    details.querySelector(".package-count").textContent = `${shown.length} of ${image.packages.length}`;
    sortAgain(table);
  };
  filter.addEventListener("input", show);
  show();
}

function offerPackages(images) {
  for (const details of document.querySelectorAll("details.packages")) {
    const image = images.get(details.dataset.image);
    details.addEventListener("toggle", () => fillPackages(details, image), { once: true });
  }
}
