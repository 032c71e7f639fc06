//<![CDATA[
// Shows the row of the chart's own table that is nearest to the pointer, or that the arrow keys
// select. The page is complete without this script.
'use strict';
for (const chart of document.querySelectorAll('figure.chart')) {
  const plot = chart.querySelector('.plot'), table = chart.querySelector('table.numbers');
  // The tables behind distributions have no positions.
  if (!plot || !table || !table.querySelector('tr[data-at]')) continue;
  const heads = [...table.tHead.rows[0].cells].map(cell => cell.textContent);
  const rows = [...table.tBodies[0].rows].map(row => ({ at: Number(row.dataset.at), cells: [...row.cells].map(cell => cell.textContent) }));
  const picture = plot.querySelector('svg');
  // Its title stays its name, but would hide the readout as a tooltip.
  const title = picture.querySelector('title');
  picture.setAttribute('aria-label', title.textContent);
  picture.removeAttribute('aria-labelledby');
  picture.setAttribute('aria-describedby', picture.querySelector('desc').id);
  title.remove();
  const make = (name, kind) => {
    const element = document.createElement(name);
    element.className = kind;
    element.hidden = true;
    plot.append(element);
    return element;
  };
  const cursor = make('div', 'cursor'), readout = make('div', 'readout');
  readout.setAttribute('aria-live', 'polite');
  let shown = -1;
  const hide = () => { cursor.hidden = readout.hidden = true; shown = -1; };
  const show = index => {
    if (index === shown) return;
    shown = index;
    const { at, cells } = rows[index];
    const line = (name, value) => {
      const item = document.createElement('i');
      for (const text of [name, value]) item.append(Object.assign(document.createElement('span'), { textContent: text }));
      return item;
    };
    readout.replaceChildren(Object.assign(document.createElement('b'), { textContent: cells[0] }), ...cells.slice(1).map((cell, n) => line(heads[n + 1], cell)));
    cursor.hidden = readout.hidden = false;
    cursor.style.left = `${at * 100}%`;
    // The readout goes to the side that has room, and never beyond the plot. It is measured at the
    // left, where it has its full width.
    readout.style.left = '0';
    const room = plot.clientWidth, width = readout.offsetWidth, x = at * room;
    readout.style.left = `${Math.max(0, Math.min(room - width, x < room / 2 ? x + 12 : x - width - 12))}px`;
  };
  const nearest = at => rows.reduce((best, row, n) => Math.abs(row.at - at) < Math.abs(rows[best].at - at) ? n : best, 0);
  plot.addEventListener('pointermove', event => {
    const box = plot.getBoundingClientRect();
    show(nearest((event.clientX - box.left) / box.width));
  });
  plot.addEventListener('pointerleave', hide);
  plot.tabIndex = 0;
  plot.setAttribute('role', 'group');
  plot.setAttribute('aria-label', `${title.textContent}: the arrow keys read its values`);
  plot.addEventListener('blur', hide);
  plot.addEventListener('keydown', event => {
    const step = { ArrowRight: 1, ArrowLeft: -1, PageUp: 10, PageDown: -10, Home: -rows.length, End: rows.length }[event.key];
    if (event.key === 'Escape') hide();
    if (step === undefined) return;
    event.preventDefault();
    show(Math.max(0, Math.min(rows.length - 1, (shown < 0 ? (step > 0 ? -1 : rows.length) : shown) + step)));
  });
}
//]]>
