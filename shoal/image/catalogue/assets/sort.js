// Tables whose columns sort: a click sorts upwards, another one downwards. Versions and numbers sort as people read them.

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });
const cellText = (row, column) => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();

function sortTable(table, column, direction) {
  const body = table.tBodies[0];
  const rows = [...body.rows];
  rows.sort((a, b) => direction * collator.compare(cellText(a, column), cellText(b, column)));
  body.append(...rows);
}

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  for (const head of heads.filter((one) => "sort" in one.dataset)) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const upwards = head.getAttribute("aria-sort") !== "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", upwards ? "ascending" : "descending");
      sortTable(table, heads.indexOf(head), upwards ? 1 : -1);
    });
  }
}

// Rows that are made anew keep the order that the reader chose.
function sortAgain(table) {
  const heads = [...table.tHead.rows[0].cells];
  const head = heads.find((one) => one.hasAttribute("aria-sort"));
  if (head) sortTable(table, heads.indexOf(head), head.getAttribute("aria-sort") === "ascending" ? 1 : -1);
}
