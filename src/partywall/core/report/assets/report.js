// Draws charts when they come into view, and opens the drill-down of the cell that the address names.
// Every figure is in the page already; nothing here computes one.
(() => {
  'use strict';
  const element = document.getElementById('data');
  const data = JSON.parse(element.textContent);
  const dark = matchMedia('(prefers-color-scheme: dark)');
  const views = new Map();
  let printing = false;

  // In a frame of Partywall's own page, which lists all files, this page may not lead to others.
  if (top !== self) {
    for (const link of document.querySelectorAll('a[href]:not([href^="#"])')) link.replaceWith(link.textContent);
  }

  // Charts of one kind share a template; each has its own tables.
  function specification(id) {
    const [template, tables] = data.charts[id];
    const sets = tables.map(({columns, rows}) => rows.map(row => Object.fromEntries(columns.map((name, index) => [name, row[index]]))));
    return JSON.parse(JSON.stringify(data.templates[template]), (key, value) => key === 'data' && 'table' in value ? {values: sets[value.table]} : value);
  }

  async function draw(place) {
    const before = views.get(place);
    const theme = dark.matches && !printing ? 'dark' : 'light';
    if (before && before.theme === theme) return before.result;
    const result = vegaEmbed(place, specification(place.dataset.chart), {
      actions: false, ast: true, renderer: 'svg', mode: 'vega-lite', config: data.themes[theme],
      tooltip: {theme}, loader: {load: () => Promise.reject(new Error('this report loads nothing'))},
    });
    views.set(place, {theme, result});
    const {view} = await result;
    if (place.dataset.signals) await set(view, JSON.parse(place.dataset.signals));
    return result;
  }

  function set(view, signals) {
    for (const [name, value] of Object.entries(signals)) view.signal(name, value);
    return view.runAsync();
  }

  async function show(place, signals) {
    place.dataset.signals = JSON.stringify(signals);
    const drawn = views.get(place);
    if (drawn) await set((await drawn.result).view, signals);
    else if (place.isConnected) await draw(place);
  }

  const visible = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) { visible.unobserve(entry.target); draw(entry.target); }
  }, {rootMargin: '400px'});

  const redraw = () => { for (const place of views.keys()) draw(place); };

  function make(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function slotTable(trial, block, treatment) {
    const names = ['position', 'treatment', trial.figure, 'first half', 'second half', 'measured ms', 'CPU time', 'aggressor achieved', 'disturbed by'];
    const body = trial.slots.filter(slot => slot[0] === block).sort((a, b) => a[1] - b[1]).map(slot => {
      const kind = slot[2] === treatment ? 'own' : trial.labels[slot[2]] === 'baseline' ? 'base' : '';
      const cells = slot.slice(1).map((value, index) => make('td', {textContent: index === 1 ? trial.labels[value] ?? value : value}));
      return make('tr', {className: kind}, ...cells);
    });
    const head = make('thead', {}, make('tr', {}, ...names.map(name => make('th', {scope: 'col', textContent: name}))));
    return make('table', {className: 'list slots'}, head, make('tbody', {}, ...body));
  }

  function blocks(panel) {
    const home = panel.querySelector('.blocks');
    const trial = data.trials[panel.dataset.trial];
    if (!home || home.childElementCount || !trial || !trial.blocks.length) return;
    const label = block => `block ${block}${trial.drawn.includes(block) ? '' : ' (slices not drawn)'}`;
    const select = make('select', {ariaLabel: 'Block'}, ...trial.blocks.map(block => make('option', {value: block, textContent: label(block)})));
    const chart = make('div', {className: 'chart', role: 'img', ariaLabel: 'Slices of the block in order of time; the table below holds its slots'});
    chart.dataset.chart = `timeline-${panel.dataset.trial}`;
    const table = make('div', {className: 'scroll', tabIndex: 0});
    const note = make('p', {className: 'soft', ariaLive: 'polite'});

    function choose(block) {
      select.value = block;
      const drawn = trial.drawn.includes(block);
      chart.hidden = !drawn;
      note.textContent = [...(trial.notes[block] ?? []), drawn ? '' : 'Slices of this block are not in this page; they are in the run directory.'].filter(Boolean).join(' ');
      table.replaceChildren(slotTable(trial, block, panel.dataset.treatment));
      if (drawn) show(chart, {block, focus: panel.dataset.treatment});
    }
    const step = by => () => {
      const next = trial.blocks[trial.blocks.indexOf(Number(select.value)) + by];
      if (next !== undefined) choose(next);
    };
    select.addEventListener('change', () => choose(Number(select.value)));
    const all = trial.blocks.length === trial.of ? '' : `${trial.blocks.length} of ${trial.of} blocks are in this page; the Parquet export has all.`;
    home.append(
      make('h4', {textContent: 'Down to the slots'}),
      make('p', {className: 'soft', textContent: `One block in order of time. Dashed lines: switches; grey: guards, left out; treatments other than this one are faint. ${all}`}),
      make('div', {className: 'picker'}, make('button', {type: 'button', textContent: '← previous', onclick: step(-1)}), select,
        make('button', {type: 'button', textContent: 'next →', onclick: step(1)})),
      ...(data.charts[chart.dataset.chart] ? [chart] : []), note, table);
    choose(trial.drawn.find(block => trial.blocks.includes(block)) ?? trial.blocks[0]);
  }

  function open(id, focus) {
    const panel = document.getElementById(id);
    if (!panel || !panel.classList.contains('panel')) return;
    document.querySelectorAll('.panel.open').forEach(other => other.classList.remove('open'));
    document.querySelectorAll('a.cell').forEach(cell => cell.setAttribute('aria-current', String(cell.hash === `#${id}`)));
    panel.classList.add('open');
    blocks(panel);
    panel.querySelectorAll('[data-chart]:not([hidden])').forEach(draw);
    if (focus) { panel.focus({preventScroll: true}); panel.scrollIntoView(); }
  }

  // Arrow keys walk the matrix as one expects of a table; Tab and Enter work anyway, as cells are links.
  const STEPS = {ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0]};
  function walk(event) {
    const step = STEPS[event.key];
    const cell = event.target.closest?.('a.cell');
    if (!step || !cell) return;
    const box = cell.parentElement;
    const row = box.parentElement.parentElement.rows[box.parentElement.sectionRowIndex + step[0]];
    const next = row?.cells[box.cellIndex + step[1]]?.querySelector('a.cell');
    if (next) { event.preventDefault(); next.focus(); }
  }

  function close(event) {
    const panel = event.key === 'Escape' && event.target.closest?.('.panel');
    if (panel) document.querySelector(`a.cell[href="#${panel.id}"]`)?.focus();
  }

  addEventListener('hashchange', () => open(location.hash.slice(1), true));
  document.addEventListener('keydown', walk);
  document.addEventListener('keydown', close);
  dark.addEventListener('change', redraw);
  addEventListener('beforeprint', () => { printing = true; document.querySelectorAll('#all details').forEach(all => { all.open = true; }); document.querySelectorAll('[data-chart]').forEach(place => { if (place.offsetParent) draw(place); }); });
  addEventListener('afterprint', () => { printing = false; redraw(); });
  open(element.dataset.first, false);
  open(location.hash.slice(1), true);
  document.querySelectorAll('main > section:not(#cells) [data-chart]').forEach(place => visible.observe(place));
})();
