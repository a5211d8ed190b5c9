"use strict";
(() => {
  const text = (cell) => cell.dataset.sort ?? cell.textContent.trim();
  const collator = new Intl.Collator(document.documentElement.lang, { numeric: true });

  // Numbers by value before words by alphabet; NaN, absent and other words stay after every number.
  const compare = (a, b) => {
    const [x, y] = [Number(a || "x"), Number(b || "x")];
    const [noX, noY] = [Number.isNaN(x), Number.isNaN(y)];
    if (noX && noY) return collator.compare(a, b);
    if (noX || noY) return noX - noY;
    return x < y ? -1 : Number(x > y);
  };

  const sort = (table, column, heading) => {
    const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    const sign = order === "ascending" ? 1 : -1;
    const rows = [...table.tBodies[0].rows].map((row) => [text(row.cells[column]), row]);
    const last = ([value]) => Number(value === "NaN" || value === "—");
    rows.sort((a, b) => last(a) - last(b) || sign * compare(a[0], b[0]));
    table.tBodies[0].append(...rows.map(([, row]) => row));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", order);
  };

  const moveFocus = (event, buttons) => {
    const at = buttons.indexOf(event.currentTarget);
    const to = {
      ArrowLeft: at - 1,
      ArrowRight: at + 1,
      Home: 0,
      End: buttons.length - 1,
    }[event.key];
    if (to === undefined || !buttons[to]) return;
    event.preventDefault();
    buttons[to].focus();
  };

  const makeSortable = (table) => {
    const headings = [...table.tHead.rows[0].cells];
    const buttons = headings.map((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, column, heading));
      heading.append(button);
      return button;
    });
    for (const button of buttons) {
      button.addEventListener("keydown", (event) => moveFocus(event, buttons));
    }
  };

  const makeFilterable = (table, input) => {
    const rows = [...table.tBodies[0].rows];
    const contents = rows.map((row) => row.textContent.toLowerCase());
    const output = input.parentElement.querySelector("output");
    const filter = () => {
      const terms = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, i) => {
        row.hidden = !terms.every((term) => contents[i].includes(term));
        shown += !row.hidden;
      });
      output.value = `${shown} / ${rows.length}`;
    };
    input.addEventListener("input", filter);
    input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") table.tHead.querySelector("button").focus();
    });
    input.parentElement.hidden = false;
    filter();
  };

  for (const input of document.querySelectorAll(".table-tools input")) {
    const table = document.getElementById(input.getAttribute("aria-controls"));
    makeSortable(table);
    makeFilterable(table, input);
  }

  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) target.open = true;
  };
  addEventListener("hashchange", openTarget);
  openTarget();

  // Paper has no disclosure triangles: what is closed on the screen is printed all the same.
  let closed = [];
  const openAll = () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const details of closed) details.open = true;
  };
  const closeAgain = () => {
    for (const details of closed) details.open = false;
    closed = [];
  };
  addEventListener("beforeprint", openAll);
  addEventListener("afterprint", closeAgain);
})();
