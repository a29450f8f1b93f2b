// Starts the page, and keeps its address such that a link to it shows the same: #ROW, #TAG, #search=..., #compare=A..B.

const { entries } = JSON.parse(document.getElementById("data").textContent);
const images = new Map(entries.flatMap((entry) => entry.images.map((image) => [image.id, image])));
// Images of an entry are in the order of their making, newest first; each flavour has a newest one.
for (const entry of entries) {
  const flavours = new Set();
  for (const image of entry.images) {
    image.older = flavours.has(image.flavour);
    flavours.add(image.flavour);
  }
}
const index = indexPackages(images);
const field = document.getElementById("search");
const remember = (hash) => history.replaceState(null, "", hash ? `#${hash}` : location.pathname + location.search);

function go() {
  let hash = location.hash.slice(1);
  try { hash = decodeURIComponent(hash); } catch { /* not escaped: as it is */ }
  const [, verb, rest] = hash.match(/^(search|compare)=(.*)$/) ?? [];
  if (verb === "search") {
    field.value = rest;
    search(rest, entries, index);
  } else if (verb === "compare") {
    const [before, after] = rest.split("..");
    if (images.has(before) && images.has(after)) {
      document.getElementById("before").value = before;
      document.getElementById("after").value = after;
      showDifference(images);
      document.getElementById("compare").scrollIntoView();
    }
  } else {
    const target = hash && document.getElementById(hash);
    const card = target && target.closest("details.card");
    if (!card) return;
    card.hidden = false; // a search may have left it out
    card.open = true;
    target.scrollIntoView();
  }
}

for (const table of document.querySelectorAll("table.data")) makeSortable(table);
showSupport(today());
followRegistry();
offerCopies();
offerPackages(images);
offerComparison(images, remember);
field.addEventListener("input", () => {
  search(field.value, entries, index);
  remember(field.value && `search=${encodeURIComponent(field.value)}`);
});
document.getElementById("search-form").addEventListener("submit", (event) => event.preventDefault());
// Paper has no clicks: what is built is printed open.
addEventListener("beforeprint", () => {
  for (const card of document.querySelectorAll("details.card:has(article)")) card.open = true;
});
addEventListener("hashchange", go);
go();
