// The board of a study: a column a level, each showing what lies below the choices to its left.
// Every figure is in the page already; only ranges of shares are found here.
(() => {
  'use strict';
  const home = document.querySelector('.board');
  const data = JSON.parse(document.getElementById('data').textContent).board;
  if (!home || !data) return;
  const {levels, figures, entries} = data;
  const chosen = [];

  function make(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  const below = path => entries.filter(entry => path.every((name, level) => entry.at[level] === name));
  const unique = names => [...new Set(names)];
  const percent = share => `${Math.round(100 * share)} %`;

  function range(path) {
    const shares = below(path).map(entry => entry.share).filter(share => share !== null);
    if (!shares.length) return ['', null];
    const low = Math.min(...shares), high = Math.max(...shares);
    return [percent(low) === percent(high) ? percent(low) : `${percent(low)} to ${percent(high)}`, [low, high]];
  }

  function bar(ends) {
    const place = make('span', {className: 'bar'});
    if (ends) {
      const [low, high] = ends.map(end => 100 * Math.min(1, end));
      place.append(make('i', {style: `left:${Math.min(99, low)}%;width:${Math.max(1, high - low)}%`}));
    }
    return place;
  }

  function item(level, name) {
    const path = [...chosen.slice(0, level), name];
    const [text, ends] = range(path);
    const button = make('button', {type: 'button', onclick: () => choose(level, name)},
      make('span', {textContent: name}), make('small', {textContent: text}), bar(ends));
    button.setAttribute('aria-pressed', String(chosen[level] === name));
    return make('li', {}, button);
  }

  function column(level) {
    const names = unique(below(chosen.slice(0, level)).map(entry => entry.at[level]));
    return make('div', {className: 'level'}, make('h3', {textContent: levels[level]}),
      make('ul', {}, ...names.map(name => item(level, name))));
  }

  function figure() {
    const entry = below(chosen)[0];
    const rows = figures.map((name, number) => make('div', {}, make('dt', {textContent: name}), make('dd', {textContent: entry.texts[number]})));
    return make('div', {className: 'level figure'}, make('h3', {textContent: 'figures'}), make('dl', {}, ...rows));
  }

  function show(focus) {
    const columns = levels.map((_, level) => level).filter(level => level <= chosen.length).map(column);
    if (chosen.length === levels.length) columns.push(figure());
    home.replaceChildren(...columns);
    if (focus !== undefined) home.children[focus]?.querySelector('[aria-pressed=true]')?.focus();
  }

  // What was chosen further down stays chosen where it is still there.
  function choose(level, name) {
    const rest = chosen.slice(level + 1);
    chosen.splice(level, levels.length, name);
    for (const kept of rest) {
      if (!below([...chosen, kept]).length) break;
      chosen.push(kept);
    }
    show(level);
  }

  show();
})();
