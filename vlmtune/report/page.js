"use strict";
// Search, filters and sorting of what the page shows anyway. Texts are read from the page and never
// written as HTML.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const bar = document.querySelector(".bar");
  const filters = document.querySelector(".filters");
  const input = bar.querySelector("input");
  const selects = filters ? all("select", filters) : [];
  const tables = all("main table:not(.heat)");
  const rows = all("main table:not(.heat) tbody tr:not(.group)");
  const cards = all("main article");
  const nameOf = (node) => node.closest("[data-benchmark]")?.dataset.benchmark ?? "";
  const texts = new Map(
    [...rows, ...cards].map((node) => [node, `${nameOf(node)} ${node.textContent}`.toLowerCase()]),
  );
  const first = new Map(all("details").map((node) => [node, node.open]));

  // Hides what lacks one of the words or differs from a choice; then what has nothing left in it.
  function apply() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const choices = selects.filter((one) => one.value && one.dataset.key !== "order");
    for (const [node, text] of texts) {
      const group = node.closest(".items");
      const fits = !group || choices.every((one) => group.dataset[one.dataset.key] === one.value);
      node.hidden = !fits || !words.every((word) => text.includes(word));
    }
    const left = (node) => all("tbody tr, article", node).some((one) => texts.has(one) && !one.hidden);
    for (const table of tables) {
      table.closest(".wide").hidden = !left(table);
      for (const body of table.tBodies) body.hidden = ![...body.rows].some((row) => texts.has(row) && !row.hidden);
    }
    for (const [node, open] of first) {
      const holds = node.querySelector("article, table:not(.heat)");
      node.hidden = Boolean(holds) && !left(node);
      if (words.length) node.open = node.open || (Boolean(holds) && !node.hidden);
      else if (input.dataset.used) node.open = open;
    }
    for (const node of all(".bench")) node.hidden = words.length > 0 && !left(node);
    for (const node of all(".bench > details")) {
      const holds = node.querySelector("article, table:not(.heat)");
      if (!holds) node.hidden = words.length > 0;
    }
    input.dataset.used = words.length ? "yes" : "";
    const shown = (nodes, noun) => {
      const count = nodes.filter((one) => !one.hidden).length;
      return `${count} ${noun}${count === 1 ? "" : "s"}`;
    };
    bar.querySelector("output").textContent = words.length
      ? `${shown(cards, "item")}, ${shown(rows, "row")}`
      : "";
  }

  function order() {
    const sign = Number(selects.find((one) => one.dataset.key === "order").value);
    const key = (one) => (sign ? sign * Number(one.dataset.gain ?? NaN) : Number(one.dataset.order));
    for (const group of all(".items .examples")) group.append(...sorted([...group.children], key));
  }

  // Sorts by a number or a text; what has none comes last.
  function sorted(nodes, key) {
    const missing = (x) => x === "" || Number.isNaN(x);
    const compare = (a, b) =>
      missing(a) - missing(b) ||
      (missing(a) ? 0 : typeof a === "number" && typeof b === "number" ? a - b : `${a}`.localeCompare(b));
    return nodes.map((node) => [key(node), node]).sort((a, b) => compare(a[0], b[0])).map((x) => x[1]);
  }

  // "98.3 %" and "< 0.001" are numbers, "±0.0" is 0, "–" is nothing; "2 h 5 min", "7.75 M" and
  // "1,024" count whole.
  const units = { s: 1, min: 60, h: 3600, k: 1e3, M: 1e6, B: 1e9 };
  function value(row, column) {
    const text = row.cells[column]?.innerText.trim() ?? "";
    if (/^([\d.]+ (s|min|h|k|M|B)\b ?)+$/.test(text)) {
      const parts = [...text.matchAll(/([\d.]+) (\w+)/g)];
      return parts.reduce((sum, [, number, unit]) => sum + number * units[unit], 0);
    }
    const number = parseFloat(text.replace(/^[<±]\s*/, "").replace(/,(?=\d{3}\b)/g, ""));
    return Number.isNaN(number) ? text.replace(/^–$/, "") : number;
  }

  function sortable(table) {
    const bodies = [...table.tBodies].map((body) => [body, all("tr:not(.group)", body)]);
    const original = bodies.flatMap(([, list]) => list);
    const heads = [...table.tHead.rows[0].cells];
    if (original.length < 2) {
      table.closest(".wide").tabIndex = 0; // keys scroll it, as no head takes the focus
      return;
    }
    heads.forEach((head, column) => {
      head.tabIndex = 0;
      head.classList.add("sorts");
      const sort = () => {
        // Numbers begin with the largest, texts with the first; a third click undoes both.
        const numeric = original.some((row) => typeof value(row, column) === "number");
        const turns = numeric ? ["descending", "ascending"] : ["ascending", "descending"];
        const next = turns[turns.indexOf(head.getAttribute("aria-sort")) + 1];
        for (const one of heads) one.removeAttribute("aria-sort");
        if (next) head.setAttribute("aria-sort", next);
        const sign = next === "descending" ? -1 : 1;
        const key = (row) => {
          const x = value(row, column);
          return typeof x === "number" ? sign * x : x;
        };
        // Groups stay apart: each is sorted within itself.
        for (const [body, rows] of bodies) {
          const list = next ? sorted(rows, key) : rows;
          body.append(...(next && !numeric && sign < 0 ? list.toReversed() : list));
        }
      };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
    });
  }

  for (const button of all(".copy button")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      button.previousElementSibling.select();
      document.execCommand("copy"); // navigator.clipboard lacks pages of plain http
      button.textContent = "copied";
    });
  }
  tables.forEach(sortable);
  input.addEventListener("input", apply);
  for (const form of [bar, filters]) form?.addEventListener("submit", (event) => event.preventDefault());
  if (filters) {
    for (const one of selects) one.addEventListener("change", one.dataset.key === "order" ? order : apply);
    filters.querySelector("button").addEventListener("click", (event) => {
      const groups = all(".items:not([hidden])");
      const open = groups.some((one) => !one.open);
      for (const one of groups) one.open = open;
      event.target.textContent = open ? "close all" : "open all";
    });
    filters.hidden = false;
  }
  bar.hidden = false;
})();
