// Sorting and filtering of tables, and copying. The page is whole without it.
"use strict";
(() => {
  const UNITS = { B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30 };

  // A number with its unit, such as "1.5 MiB" or "1.83x"; NaN for other text.
  function numberOf(text) {
    const found = /^[±+]?\s*(-?[\d.]+(?:e[+-]?\d+)?)\s*(\w*)/.exec(text.replace("\u2212", "-"));
    return found ? Number(found[1]) * (UNITS[found[2]] || 1) : NaN;
  }

  const textOf = (row, column) => row.cells[column].textContent.trim();

  function sort(table, head) {
    const column = head.cellIndex;
    const isNumber = head.classList.contains("n");
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : isNumber;
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const keyed = [...body.rows].map((row) => {
      const text = textOf(row, column);
      return { row, text, value: numberOf(text) };
    });
    const sign = down ? -1 : 1;
    keyed.sort((a, b) => {
      if (!isNumber) return sign * a.text.localeCompare(b.text, undefined, { numeric: true });
      if (isNaN(a.value) || isNaN(b.value)) return isNaN(a.value) - isNaN(b.value);
      return sign * (a.value - b.value);
    });
    body.append(...keyed.map((one) => one.row));
  }

  // Every word must occur in the row; a select compares one column.
  function makeFilter(table) {
    const bar = document.createElement("div");
    bar.className = "filter";
    const input = document.createElement("input");
    input.type = "search";
    input.placeholder = "Filter rows";
    input.setAttribute("aria-label", "Filter rows");
    const count = document.createElement("span");
    count.className = "note";
    const rows = [...table.tBodies[0].rows];
    const selects = [];
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      if (!head.classList.contains("kind")) return;
      const values = [...new Set(rows.map((row) => textOf(row, column)))].sort();
      if (values.length < 2) return;
      const select = document.createElement("select");
      select.setAttribute("aria-label", head.textContent);
      select.append(new Option(`all: ${head.textContent}`, ""));
      for (const value of values) select.append(new Option(value, value));
      selects.push({ select, column });
    });
    const apply = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        const fits = words.every((word) => text.includes(word)) &&
          selects.every(({ select, column }) => !select.value || textOf(row, column) === select.value);
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${rows.length} rows`;
    };
    for (const one of [input, ...selects.map((s) => s.select)]) one.addEventListener("input", apply);
    bar.append(input, ...selects.map((s) => s.select), count);
    table.closest(".scroll").before(bar);
    apply();
  }

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const head of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(table, head));
      head.append(button);
    }
    if (table.classList.contains("filterable")) makeFilter(table);
  }

  for (const line of document.querySelectorAll(".replay")) {
    const button = document.createElement("button");
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const code = line.querySelector("code");
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Press Ctrl+C";
      }
    });
    line.append(button);
  }
})();
