// Sorting, filters, switches and tooltips. Without this script the page has all its content.
"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };

  // Tables: a click on a heading sorts the rows below each group's heading.
  const collator = new Intl.Collator("en", { numeric: true });
  const words = (cell) => cell?.textContent.trim() ?? "";
  const value = (cell) => parseFloat(cell?.dataset.sort ?? words(cell).replaceAll(",", ""));
  const compare = (column, isText, sign) => (one, other) => {
    const [a, b] = [one.cells[column], other.cells[column]];
    if (isText) return sign * collator.compare(words(a), words(b));
    const [x, y] = [value(a), value(b)];
    // What is no number comes last, whichever way.
    if (isNaN(x) || isNaN(y)) return isNaN(x) - isNaN(y);
    return x === y ? 0 : sign * (x < y ? -1 : 1);
  };
  const sortRows = (body, order) => {
    const groups = [[]];
    for (const row of body.given) {
      if (row.className === "group") groups.push([row]);
      else groups.at(-1).push(row);
    }
    const sorted = groups.flatMap((rows) => {
      const heading = rows[0]?.className === "group" ? 1 : 0;
      const own = rows.slice(heading);
      return [...rows.slice(0, heading), ...(order ? own.sort(order) : own)];
    });
    body.replaceChildren(...sorted);
  };
  const makeSortable = (table) => {
    const heads = all("thead th", table), body = table.tBodies[0];
    body.given = [...body.rows];
    heads.forEach((head, column) => {
      if (!head.textContent) return;
      // A <button> is printed on the first page of its table alone.
      const button = make("span", { role: "button", tabIndex: 0, title: "Sort" }, ...head.childNodes);
      head.append(button);
      button.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        button.click();
      });
      button.addEventListener("click", () => {
        // Up, down, and the order that was given.
        const next = { ascending: "descending", descending: null };
        const order = head.ariaSort ? next[head.ariaSort] : "ascending";
        for (const other of heads) other.ariaSort = null;
        head.ariaSort = order;
        const sign = order === "descending" ? -1 : 1;
        sortRows(body, order && compare(column, head.classList.contains("t"), sign));
      });
    });
  };
  // A filter keeps the rows that hold all of its words, and the headings above them.
  const makeFilter = (table) => {
    const rows = [...table.tBodies[0].rows];
    const count = rows.filter((row) => row.className !== "group").length;
    if (count < 8) return;
    const told = make("output");
    const box = make("input", { type: "search", placeholder: "Filter rows" });
    const title = table.closest("details")?.querySelector("summary").textContent.trim();
    box.ariaLabel = `Filter rows: ${title}`;
    box.addEventListener("input", () => {
      const wanted = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      let heading = null, kept = 0;
      for (const row of table.tBodies[0].rows) {
        if (row.className === "group") {
          heading = row;
          heading.hidden = wanted.length > 0;
          continue;
        }
        const text = `${row.textContent} ${heading?.textContent ?? ""}`.toLowerCase();
        row.hidden = !wanted.every((word) => text.includes(word));
        if (row.hidden) continue;
        kept += 1;
        if (heading) heading.hidden = false;
      }
      told.value = wanted.length ? `${kept} of ${count} rows` : "";
    });
    table.closest(".scroll").before(make("p", { className: "filter" }, box, told));
  };
  for (const table of all("table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    makeSortable(table);
    makeFilter(table);
  }

  // Legends switch lines off and on.
  for (const figure of all("figure:has(.series)")) {
    const series = all(".series", figure), items = all(".legend li", figure);
    if (series.length > 1) series.forEach((line, place) => {
      const item = items[place];
      const button = make("button", { type: "button", title: "Show or hide" }, ...item.childNodes);
      button.ariaPressed = "true";
      item.append(button);
      button.addEventListener("click", () => {
        button.ariaPressed = String(line.classList.contains("off"));
        line.classList.toggle("off");
      });
    });
  }

  // A table is copied as CSV.
  const inert = (text) => (/^[=+\-@]/.test(text) && isNaN(Number(text)) ? `'${text}` : text);
  const quoted = (cell) => `"${inert(words(cell)).replaceAll('"', '""')}"`;
  const asCsv = (table) => [...table.rows]
    .filter((row) => !row.hidden)
    .map((row) => [...row.cells].map(quoted).join(","))
    .join("\r\n");
  for (const box of all(".scroll:has(table)")) {
    const button = make("button", { type: "button" }, "Copy CSV");
    button.addEventListener("click", async () => {
      await navigator.clipboard.writeText(asCsv(box.querySelector("table")));
      button.textContent = "Copied";
    });
    box.after(make("p", { className: "tools" }, button));
  }

  // A tooltip shows the point that is nearest to the pointer.
  const tip = document.body.appendChild(make("div", { id: "tip", hidden: true }));
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  ring.setAttribute("class", "ring");
  ring.setAttribute("r", 7);
  const points = new Map();
  const pointsOf = (line) => {
    if (!points.has(line)) {
      const own = line.dataset.points.split("|").map((point) => {
        const [, x, y, told] = /^(\S+) (\S+) (.*)$/.exec(point);
        return { x: Number(x), y: Number(y), told, line };
      });
      points.set(line, own);
    }
    return points.get(line);
  };
  const hide = () => { tip.hidden = true; ring.remove(); };
  const show = (event) => {
    const chart = event.currentTarget;
    const at = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse());
    let best = null, least = 30;
    for (const point of all("[data-points]:not(.off)", chart).flatMap(pointsOf)) {
      const distance = Math.hypot(point.x - at.x, point.y - at.y);
      if (distance < least) [best, least] = [point, distance];
    }
    if (!best) return hide();
    ring.setAttribute("cx", best.x);
    ring.setAttribute("cy", best.y);
    chart.append(ring);
    const { label, x, y } = best.line.dataset, [there, here, what] = best.told.split("; ");
    tip.replaceChildren(make("strong", {}, `${y}: ${there}`));
    for (const line of [x && `${x}: ${here}`, label, what]) if (line) tip.append(make("br"), line);
    tip.hidden = false;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(event.clientX + 14, room))}px`;
    const below = event.clientY + 18 + tip.offsetHeight < innerHeight;
    tip.style.top = `${below ? event.clientY + 18 : Math.max(8, event.clientY - tip.offsetHeight - 12)}px`;
  };
  for (const chart of all(".chart:has([data-points])")) {
    chart.addEventListener("pointermove", show);
    chart.addEventListener("pointerdown", show);
    // A finger is lifted to read what it was put on; a tap elsewhere hides it.
    chart.addEventListener("pointerleave", (event) => event.pointerType === "touch" || hide());
  }
  addEventListener("pointerdown", (event) => event.target.closest(".chart") || hide());
  addEventListener("scroll", hide, { passive: true });

  // What a link leads to is unfolded.
  const reveal = () => {
    const target = document.getElementById(location.hash.slice(1));
    for (let at = target?.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
    target?.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
})();
