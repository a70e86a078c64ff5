'use strict';
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const ACTIONS = {
  F: 'forward', B: 'backward, activations', W: 'backward, weights',
  R: 'recomputation', U: 'optimizer', P: 'prologue',
};
const DARK_TEXT = new Set(['B', 'R', 'comm']);

// ---------------------------------------------------------------- small helpers

const SVG = 'http://www.w3.org/2000/svg';
function svg(tag, attributes, parent, text) {
  const node = document.createElementNS(SVG, tag);
  for (const key in attributes) node.setAttribute(key, attributes[key]);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.appendChild(node);
  return node;
}
function html(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const key in attributes || {}) {
    if (key.startsWith('on')) node.addEventListener(key.slice(2), attributes[key]);
    else node.setAttribute(key, attributes[key]);
  }
  node.append(...children.filter(child => child !== null));
  return node;
}
function scaled(value, units, step) {
  let i = 0;
  while (i + 1 < units.length && Math.abs(value) >= step) { value /= step; ++i; }
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return value.toFixed(i === 0 && units[0] === 'B' ? 0 : digits) + ' ' + units[i];
}
const bytes = value => scaled(value, ['B', 'KiB', 'MiB', 'GiB', 'TiB'], 1024);
function seconds(value) {
  if (value >= 1) return value.toPrecision(4) + ' s';
  return scaled(value * 1e9, ['ns', 'µs', 'ms', 's'], 1000);
}
const count = value => value.toLocaleString('en-US');
const percent = value => (100 * value).toFixed(1) + ' %';
const color = name => `var(--${name})`;
const colorOf = kind => ACTIONS[kind] ? kind : 'comm';

// Rounds up to 1, 2 or 5 times a power of ten.
function roundStep(raw) {
  const power = 10 ** Math.floor(Math.log10(raw));
  for (const factor of [1, 2, 5]) if (raw <= factor * power * 1.0001) return factor * power;
  return 10 * power;
}

const tip = document.getElementById('tip');
function showTip(event, lines) {
  tip.replaceChildren(...lines.map((line, i) => html(i ? 'div' : 'b', {}, line)));
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), gap = 14;
  const x = event.clientX + gap + box.width > innerWidth ? event.clientX - gap - box.width : event.clientX + gap;
  const y = event.clientY + gap + box.height > innerHeight ? event.clientY - gap - box.height : event.clientY + gap;
  tip.style.left = Math.max(4, x) + 'px';
  tip.style.top = Math.max(4, y) + 'px';
}
function hideTip() { tip.hidden = true; }

// Columns: [title, numeric?]. Cells are texts or nodes; a row may have a class.
function table(columns, rows) {
  const head = html('tr', {}, ...columns.map(([title, numeric]) =>
      html('th', numeric ? {class: 'n', scope: 'col'} : {scope: 'col'}, title)));
  const body = rows.map(row => html('tr', row.chosen ? {class: 'chosen'} : {},
      ...row.cells.map((cell, i) => html('td', {class: columns[i][1] ? 'n' : 'name'}, cell))));
  return html('div', {class: 'scroll'}, html('table', {}, html('thead', {}, head), html('tbody', {}, ...body)));
}
function legend(entries) {
  return html('div', {class: 'legend'}, ...entries.map(([name, label]) => {
    const mark = html('i');
    mark.style.background = color(name);
    return html('span', {}, mark, label);
  }));
}
const sections = [];
function section(id, title, intro, ...children) {
  const node = html('section', {id}, html('h2', {}, title),
      intro ? html('p', {class: 'soft'}, intro) : null, ...children);
  sections.push([id, title]);
  document.getElementById('main').append(node);
  return node;
}

// ---------------------------------------------------------------- summary

function tile(label, value, note) {
  return html('div', {class: 'tile'}, html('span', {class: 'soft small'}, label),
      html('b', {}, value), note ? html('span', {class: 'soft small'}, note) : null);
}
function summary() {
  const predicted = data.timelines.find(t => t.name === 'predicted');
  const measured = data.timelines.find(t => t.name === 'measured');
  const whole = t => t.use.reduce((sum, u) => sum + u[0] + u[1] + u[2], 0) || 1;
  const share = (t, i) => t.use.reduce((sum, u) => sum + u[i], 0) / whole(t);
  const tiles = [];
  tiles.push(tile('predicted step', seconds(predicted.seconds),
      data.tokens ? count(Math.round(data.tokens / predicted.seconds)) + ' tokens a second' : ''));
  if (measured)
    tiles.push(tile('measured step', seconds(measured.seconds), 'prediction off by ' +
        percent(predicted.seconds / measured.seconds - 1)));
  const shown = measured || predicted, what = measured ? 'measured' : 'predicted';
  tiles.push(tile('pipeline bubble', percent(share(shown, 2)), `${what}, mean of the stages`));
  tiles.push(tile('exposed communication', percent(share(shown, 1)), 'nothing is computed meanwhile'));
  let fullest = 0;
  data.memory.forEach((m, i) => { if (m.arena > data.memory[fullest].arena) fullest = i; });
  if (data.memory.length)
    tiles.push(tile('memory of the fullest rank', bytes(data.memory[fullest].arena), data.rows[fullest]));
  document.getElementById('top').replaceChildren(html('h1', {}, data.title),
      html('div', {class: 'soft'}, data.facts.join(' · ')), html('div', {class: 'tiles'}, ...tiles));
}

// ---------------------------------------------------------------- timeline

function timeline() {
  const longest = Math.max(...data.timelines.map(t => t.seconds)) || 1;
  const view = {from: 0, to: longest, shown: 'all', comm: true};
  const plot = svg('svg', {class: 'pan', tabindex: 0, role: 'img',
      'aria-label': 'timeline of the step, a row for each stage'});
  const TOP = 26, BAR = 20, THIN = 5, GAP = 9;
  let left = 140, width = 1000;

  // Of each row and timeline the bars, and its messages in as few lines as
  // keep them apart.
  const lanes = [];
  data.rows.forEach((row, index) => data.timelines.forEach(t => {
    const compute = [], comm = [];
    t.spans.filter(span => span[0] === index).sort((a, b) => a[3] - b[3]).forEach(span => {
      if (ACTIONS[data.kinds[span[1]]]) return compute.push(span);
      const free = comm.find(list => list[list.length - 1][4] <= span[3]);
      if (free) free.push(span); else comm.push([span]);
    });
    lanes.push({row: index, timeline: t, compute, comm});
  }));

  function bars(list, y, height, group) {
    const scale = (width - left) / (view.to - view.from);
    let drawn = -1;
    for (const span of list) {
      if (span[4] <= view.from || span[3] >= view.to) continue;
      const kind = data.kinds[span[1]];
      const x = left + Math.max(0, span[3] - view.from) * scale;
      const end = left + Math.min(view.to - view.from, span[4] - view.from) * scale;
      // Where many bars share a pixel, one of them is enough.
      if (end - x < 0.5 && end < drawn + 0.5) continue;
      drawn = end;
      const bar = svg('rect', {x: x.toFixed(2), y, width: Math.max(0.6, end - x - (end - x > 4 ? 0.8 : 0)).toFixed(2),
          height, rx: height > 10 && end - x > 6 ? 2 : 0, class: 'span', fill: color(colorOf(kind))}, group);
      bar.span = span;
      const label = kind + (span[2] >= 0 ? span[2] : '');
      if (height > 10 && end - x > 7 * label.length + 4)
        svg('text', {x: ((x + end) / 2).toFixed(1), y: y + height - 6, 'text-anchor': 'middle',
            class: DARK_TEXT.has(colorOf(kind)) ? 'in dark' : 'in'}, group, label);
    }
  }

  function draw() {
    width = Math.max(300, plot.clientWidth || 1000);
    left = width < 700 ? 78 : 150;
    plot.replaceChildren();
    const several = data.timelines.length > 1;
    const scale = (width - left) / (view.to - view.from);
    const body = svg('g', {}, plot);
    let y = TOP, before = -1;
    for (const lane of lanes) {
      if (view.shown !== 'all' && lane.timeline.name !== view.shown) continue;
      if (lane.row !== before) {
        if (before >= 0) y += GAP;
        const label = data.rows[lane.row];
        const short = left < 100 ? label.split(',')[0] : label.length > 22 ? label.slice(0, 21) + '…' : label;
        svg('text', {x: 10, y: y + 14}, body, short);
        before = lane.row;
      } else {
        svg('text', {x: 10, y: y + 14, class: 'soft'}, body, lane.timeline.name);
      }
      svg('rect', {x: left, y, width: width - left, height: BAR, class: 'ground'}, body);
      bars(lane.compute, y, BAR, body);
      y += BAR + 2;
      if (view.comm) for (const list of lane.comm) { bars(list, y, THIN, body); y += THIN + 1; }
      y += 2;
    }
    const axis = svg('g');
    plot.insertBefore(axis, body);
    const step = roundStep((view.to - view.from) * 90 / (width - left));
    for (let t = Math.ceil(view.from / step) * step; t <= view.to + step * 1e-6; t += step) {
      const x = left + (t - view.from) * scale;
      svg('line', {x1: x, x2: x, y1: TOP - 6, y2: y, class: 'grid', opacity: 0.55}, axis);
      svg('text', {x: x + 3, y: 14, class: 'soft'}, axis, t ? seconds(t) : '0');
    }
    for (const t of data.timelines) {
      if ((view.shown !== 'all' && t.name !== view.shown) || t.seconds > view.to || t.seconds < view.from) continue;
      const x = left + (t.seconds - view.from) * scale;
      svg('line', {x1: x, x2: x, y1: TOP - 6, y2: y, stroke: color('accent'), 'stroke-width': 1.5,
          'stroke-dasharray': t.name === 'predicted' ? '5 4' : 'none'}, axis);
      if (several) svg('text', {x: x - 4, y: TOP - 4, 'text-anchor': 'end', fill: color('accent')}, axis, t.name);
    }
    plot.setAttribute('viewBox', `0 0 ${width} ${y + 8}`);
    plot.style.height = y + 8 + 'px';
  }

  function zoom(factor, at) {
    const center = at === undefined ? (view.from + view.to) / 2 : at;
    const span = Math.min(longest, Math.max(longest / 1e5, (view.to - view.from) * factor));
    const from = Math.min(Math.max(0, center - (center - view.from) * span / (view.to - view.from)), longest - span);
    view.from = from;
    view.to = from + span;
    draw();
  }
  function move(by) {
    const span = view.to - view.from;
    view.from = Math.min(Math.max(0, view.from + by), longest - span);
    view.to = view.from + span;
    draw();
  }
  const timeAt = x => view.from + (x - plot.getBoundingClientRect().left - left) * (view.to - view.from) / (width - left);
  plot.addEventListener('wheel', event => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeAt(event.clientX));
  }, {passive: false});
  plot.addEventListener('dblclick', event => zoom(0.4, timeAt(event.clientX)));
  let drag = null;
  plot.addEventListener('pointerdown', event => { drag = event.clientX; plot.setPointerCapture(event.pointerId); });
  plot.addEventListener('pointerup', () => { drag = null; });
  plot.addEventListener('pointermove', event => {
    if (drag !== null) {
      move((drag - event.clientX) * (view.to - view.from) / (width - left));
      drag = event.clientX;
      return;
    }
    const span = event.target.span;
    if (!span) return hideTip();
    const kind = data.kinds[span[1]];
    showTip(event, [
      (ACTIONS[kind] || kind) + (span[2] >= 0 ? ', microbatch ' + span[2] : ''), data.rows[span[0]],
      `${seconds(span[3])} to ${seconds(span[4])}: ${seconds(span[4] - span[3])}`, data.names[span[6]],
    ].filter(Boolean));
  });
  plot.addEventListener('pointerleave', hideTip);
  plot.addEventListener('keydown', event => {
    const keys = {'+': () => zoom(0.7), '-': () => zoom(1.4), '0': () => zoom(1e9),
        ArrowLeft: () => move(-(view.to - view.from) / 8), ArrowRight: () => move((view.to - view.from) / 8)};
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });

  const used = new Set(data.kinds.map(colorOf));
  const names = Object.entries(ACTIONS).filter(([kind]) => used.has(kind)).map(([kind, name]) => [kind, `${kind} ${name}`]);
  if (used.has('comm')) names.push(['comm', 'communication']);
  const controls = html('div', {class: 'bar push'});
  if (data.timelines.length > 1)
    controls.append(html('select', {'aria-label': 'timelines shown', onchange: event => { view.shown = event.target.value; draw(); }},
        html('option', {value: 'all'}, 'both'), ...data.timelines.map(t => html('option', {value: t.name}, t.name))));
  controls.append(
      html('label', {class: 'small'}, html('input', {type: 'checkbox', checked: '', onchange: event => { view.comm = event.target.checked; draw(); }}), ' communication'),
      html('button', {type: 'button', 'aria-label': 'zoom in', onclick: () => zoom(0.5)}, '+'),
      html('button', {type: 'button', 'aria-label': 'zoom out', onclick: () => zoom(2)}, '−'),
      html('button', {type: 'button', onclick: () => zoom(1e9)}, 'whole step'));
  section('timeline', 'Timeline',
      'One rank of each class of ranks that behave alike. Zoom with the buttons, Ctrl and the wheel or a double click; drag to move.',
      html('div', {class: 'bar'}, legend([...names, ['idle', 'idle']]), controls), html('div', {class: 'plot'}, plot));
  draw();
  addEventListener('resize', draw);
}

// ---------------------------------------------------------------- balance

function balance() {
  const parts = [['F', 'computes'], ['comm', 'only communicates'], ['idle', 'idle']];
  const rows = [];
  data.timelines.forEach(t => t.use.forEach((use, row) => {
    const total = use[0] + use[1] + use[2] || 1;
    const stack = html('div', {class: 'stack', role: 'img',
        'aria-label': `computes ${percent(use[0] / total)}`});
    parts.forEach(([name], i) => {
      const part = html('div');
      part.style.cssText = `width:${100 * use[i] / total}%;background:${color(name)}`;
      stack.append(part);
    });
    const byKind = {};
    t.spans.forEach(s => { if (s[0] === row && ACTIONS[data.kinds[s[1]]])
      byKind[data.kinds[s[1]]] = (byKind[data.kinds[s[1]]] || 0) + s[4] - s[3]; });
    rows.push({cells: [data.rows[row], ...(data.timelines.length > 1 ? [t.name] : []), stack,
      seconds(use[0]), percent(use[0] / total), percent(use[1] / total), percent(use[2] / total),
      ...kindsShown.map(kind => byKind[kind] ? seconds(byKind[kind]) : '–')]});
  }));
  rows.sort((a, b) => data.rows.indexOf(a.cells[0]) - data.rows.indexOf(b.cells[0]));
  section('balance', 'Balance and bubble',
      'How each stage spends the step. Exposed communication is what no computation hides; the bubble is the time without either.',
      html('div', {class: 'bar'}, legend(parts)),
      table([['stage'], ...(data.timelines.length > 1 ? [['']] : []), ['share of the step'], ['computes', 1], ['busy', 1], ['exposed', 1],
        ['bubble', 1], ...kindsShown.map(kind => [kind, 1])], rows));
}
const kindsShown = Object.keys(ACTIONS).filter(kind => data.kinds.includes(kind));

// ---------------------------------------------------------------- memory

function memoryChart(plot, memory, most, step) {
  const WIDTH = Math.max(200, plot.clientWidth), HEIGHT = 160, LEFT = 62, BOTTOM = 18, TOP = 8;
  plot.replaceChildren();
  plot.setAttribute('viewBox', `0 0 ${WIDTH} ${HEIGHT}`);
  plot.style.height = HEIGHT + 'px';
  const x = t => LEFT + t / step * (WIDTH - LEFT - 4);
  const y = b => HEIGHT - BOTTOM - b / most * (HEIGHT - BOTTOM - TOP);
  for (const part of [0, 0.5, 1]) {
    svg('line', {x1: LEFT, x2: WIDTH, y1: y(most * part), y2: y(most * part), class: 'grid'}, plot);
    svg('text', {x: LEFT - 6, y: y(most * part) + 4, 'text-anchor': 'end', class: 'soft'}, plot, bytes(most * part));
  }
  const points = memory.points;
  const sum = (p, n) => { let s = 0; for (let i = 0; i < n; ++i) s += p[i + 1]; return s; };
  const endOf = i => i + 1 < points.length ? points[i + 1][0] : step;
  data.categories.forEach((category, c) => {
    if (!points.some(p => p[c + 1] > 0)) return;
    let upper = '', lower = '';
    points.forEach((p, i) => {
      upper += `L${x(p[0]).toFixed(1)} ${y(sum(p, c + 1)).toFixed(1)}L${x(endOf(i)).toFixed(1)} ${y(sum(p, c + 1)).toFixed(1)}`;
      lower = `L${x(endOf(i)).toFixed(1)} ${y(sum(p, c)).toFixed(1)}L${x(p[0]).toFixed(1)} ${y(sum(p, c)).toFixed(1)}` + lower;
    });
    svg('path', {d: 'M' + (upper + lower).slice(1) + 'Z', fill: color(category), class: 'area'}, plot);
  });
  svg('line', {x1: LEFT, x2: WIDTH, y1: y(memory.arena), y2: y(memory.arena), stroke: color('ink'), 'stroke-dasharray': '4 3'}, plot);
  const cursor = svg('line', {y1: TOP, y2: HEIGHT - BOTTOM, stroke: color('ink'), visibility: 'hidden'}, plot);
  svg('text', {x: LEFT, y: HEIGHT - 4, class: 'soft'}, plot, '0');
  svg('text', {x: WIDTH - 4, y: HEIGHT - 4, 'text-anchor': 'end', class: 'soft'}, plot, seconds(step));
  plot.onpointermove = event => {
    const box = plot.getBoundingClientRect();
    const t = ((event.clientX - box.left) * WIDTH / box.width - LEFT) / (WIDTH - LEFT - 4) * step;
    if (t < 0 || t > step) return hideTip();
    let i = points.length - 1;
    while (i > 0 && points[i][0] > t) --i;
    cursor.setAttribute('x1', x(t));
    cursor.setAttribute('x2', x(t));
    cursor.setAttribute('visibility', 'visible');
    showTip(event, [`${bytes(sum(points[i], data.categories.length))} at ${seconds(t)}`,
      ...data.categories.map((name, c) => points[i][c + 1] > 0 ? `${name} ${bytes(points[i][c + 1])}` : '').filter(Boolean)]);
  };
  plot.onpointerleave = () => { hideTip(); cursor.setAttribute('visibility', 'hidden'); };
}
function memory() {
  if (!data.memory.length) return;
  const most = Math.max(...data.memory.map(m => Math.max(m.arena, m.peak))) || 1;
  const step = data.timelines[0].seconds || 1;
  const cards = data.memory.map((m, row) => html('div', {class: 'card'}, html('h3', {}, data.rows[row]),
      svg('svg', {role: 'img', 'aria-label': 'memory over the step'}),
      html('div', {class: 'small soft'}, `peak ${bytes(m.peak)} at ${seconds(m.peakTime)}, allocated ${bytes(m.arena)}`),
      table([['at the peak'], ['copies', 1], ['bytes', 1]], m.tensors.map(([name, category, size, copies, buffer]) => {
        const mark = html('span', {class: 'swatch', title: data.categories[category]});
        mark.style.background = color(data.categories[category]);
        return {cells: [html('span', {title: buffer ? `buffer ${buffer}` : ''}, mark, name), count(copies), bytes(size)]};
      }))));
  const used = data.categories.filter((name, c) => data.memory.some(m => m.points.some(p => p[c + 1] > 0)));
  section('memory', 'Memory',
      'What holds a value at each moment of the predicted step, on one rank of each class. The dashed line is what the runtime allocates, once.',
      html('div', {class: 'bar'}, legend(used.map(name => [name, name]))), html('div', {class: 'cards'}, ...cards));
  const draw = () => cards.forEach((card, i) => memoryChart(card.querySelector('svg'), data.memory[i], most, step));
  draw();
  addEventListener('resize', draw);
}

// ---------------------------------------------------------------- tables

function traffic() {
  const total = Math.max(...data.traffic.map(t => t[4]), 1);
  const rows = data.traffic.map(([row, kind, over, times, size, time]) => {
    const meter = html('div', {class: 'meter'});
    meter.style.width = 100 * size / total + '%';
    return {cells: [data.rows[row], kind, over, count(times), bytes(size), bytes(size / times), seconds(time), meter]};
  });
  section('communication', 'Communication',
      rows.length ? 'Messages of one rank of each class in a step; the time is from when all partners are there.' :
          'No rank sends anything.',
      rows.length ? table([['stage'], ['operation'], ['over'], ['times', 1], ['bytes', 1], ['each', 1], ['time', 1], ['']], rows) : null);
}
function recomputation() {
  const stages = data.stages;
  if (!stages.length) return;
  const any = stages.some(s => s.opsRecomputed > 0);
  const timed = stages.some(s => s.forward > 0), sized = stages.some(s => s.memory > 0);
  const columns = [['stage'], ['from'], ['to'], ['ops', 1]];
  if (timed) columns.push(['forward', 1], ['backward', 1]);
  if (sized) columns.push(['memory', 1], ['limit', 1]);
  if (any) columns.push(['recomputed', 1], ['bytes freed', 1], ['takes', 1]);
  if (stages.some(s => s.why)) columns.push(['why']);
  const why = stages.some(s => s.why);
  section('stages', 'Stages and recomputation', any ?
      'Recomputed operations are run again before the backward pass of a microbatch instead of keeping what they made; bytes and times are of one microbatch.' :
      'Nothing is recomputed: every stage keeps what its backward pass needs.',
      table(columns, stages.map((s, i) => ({cells: [String(i), s.first, s.last, count(s.ops),
        ...(timed ? [seconds(s.forward), seconds(s.backward)] : []),
        ...(sized ? [bytes(s.memory), s.limit ? bytes(s.limit) : '–'] : []),
        ...(any ? [`${s.opsRecomputed} of ${s.ops}`, bytes(s.recomputedBytes), seconds(s.recompute)] : []),
        ...(why ? [s.why] : [])]}))));
}
// Time over memory of all that was considered, with the steps of what is worth
// having: less of one only for more of the other.
function tradeoffs() {
  const list = data.candidates.filter(c => c.feasible && c.memory > 0 && c.seconds > 0);
  if (list.length < 2) return;
  const W = 920, H = 400, L = 84, R = 150, T = 16, B = 46;
  const axis = (values, from, to) => {
    const low = Math.log(Math.min(...values) / 1.08), high = Math.log(Math.max(...values) * 1.08);
    return value => from + (to - from) * (Math.log(value) - low) / (high - low);
  };
  const x = axis(list.map(c => c.memory), L, W - R), y = axis(list.map(c => c.seconds), H - B, T);
  const plot = svg('svg', {viewBox: `0 0 ${W} ${H}`, role: 'img', 'aria-label': 'predicted step over memory of the fullest rank'});
  const ends = (values, say, put) => {
    const low = Math.min(...values), high = Math.max(...values);
    for (let i = 0; i < 4; ++i) put(low * (high / low) ** (i / 3), say);
  };
  ends(list.map(c => c.memory), bytes, (value, say) => {
    svg('line', {x1: x(value), x2: x(value), y1: T, y2: H - B, class: 'grid'}, plot);
    svg('text', {x: x(value), y: H - B + 18, class: 'soft', 'text-anchor': 'middle'}, plot, say(value));
  });
  ends(list.map(c => c.seconds), seconds, (value, say) => {
    svg('line', {x1: L, x2: W - R, y1: y(value), y2: y(value), class: 'grid'}, plot);
    svg('text', {x: L - 8, y: y(value) + 4, class: 'soft', 'text-anchor': 'end'}, plot, say(value));
  });
  svg('text', {x: (L + W - R) / 2, y: H - 8, 'text-anchor': 'middle'}, plot, 'memory of the fullest rank');
  let best = Infinity, path = '';
  for (const c of [...list].sort((a, b) => a.memory - b.memory || a.seconds - b.seconds)) {
    if (c.seconds >= best) continue;
    best = c.seconds;
    path += path ? ` H${x(c.memory)} V${y(c.seconds)}` : `M${x(c.memory)} ${y(c.seconds)}`;
  }
  svg('path', {class: 'curve', d: `${path} H${W - R}`, fill: 'none', stroke: color('accent'), 'stroke-width': 1.5}, plot);
  const named = c => c.chosen || (c.name && c.name !== 'merakc');
  const labels = new Map(); // by place, since some ways are the same plan
  for (const c of [...list].sort((a, b) => named(a) - named(b))) {
    const dot = svg('circle', {class: 'point', cx: x(c.memory), cy: y(c.seconds), r: c.chosen ? 7 : 4,
        fill: color(c.chosen ? 'U' : named(c) ? 'B' : 'accent')}, plot);
    dot.addEventListener('pointermove', event => showTip(event, [
      c.chosen ? 'chosen' : c.name || 'considered', `pp=${c.pp} dp=${c.dp} tp=${c.tp}, ${c.microbatches} × ${c.microbatch}, ${c.schedule}`,
      `recompute ${c.recompute}`, `${bytes(c.memory)}, ${seconds(c.seconds)}`]));
    dot.addEventListener('pointerleave', hideTip);
    const place = `${x(c.memory).toFixed(0)} ${y(c.seconds).toFixed(0)}`;
    if (named(c)) labels.set(place, [...(labels.get(place) || []), c.chosen ? 'chosen' : c.name]);
  }
  for (const [place, names] of labels) {
    const [at, height] = place.split(' ').map(Number);
    const isRight = at > W - R - 60; // no room beside it
    svg('text', {x: at + (isRight ? 0 : 9), y: height + (isRight ? -9 : 4), 'text-anchor': isRight ? 'end' : 'start'},
        plot, names.join(', '));
  }
  section('tradeoffs', 'Memory and time',
      'Estimates of the search; the line leads along what none beats in both. Point at a dot for its plan.',
      html('div', {class: 'plot'}, plot));
}
function candidates() {
  const list = data.candidates.filter(c => !c.onlyDrawn);
  if (!list.length) return;
  const has = key => list.some(c => c[key]);
  const columns = [];
  const add = (title, numeric, cell) => columns.push({title, numeric, cell});
  if (has('name')) add('configuration', 0, c => c.name);
  for (const axis of ['pp', 'dp', 'tp']) add(axis, 1, c => String(c[axis]));
  add('microbatches', 1, c => `${c.microbatches} × ${c.microbatch}`);
  if (has('schedule')) add('schedule', 0, c => c.schedule);
  if (has('recompute')) add('recompute', 0, c => c.recompute);
  if (has('tpOverlap')) add('tp overlap', 1, c => String(c.tpOverlap));
  if (has('memory')) add('memory', 1, c => c.memory ? bytes(c.memory) : '–');
  if (has('bubble')) add('bubble', 1, c => seconds(c.bubble));
  if (has('exposed')) add('exposed', 1, c => seconds(c.exposed));
  add('predicted step', 1, c => c.feasible ? seconds(c.seconds) : 'does not fit');
  const most = Math.max(...list.filter(c => c.feasible).map(c => c.seconds), 0) || 1;
  add('', 0, c => {
    const meter = html('div', {class: 'meter'});
    meter.style.width = c.feasible ? 100 * c.seconds / most + '%' : '0';
    meter.style.minWidth = '2px';
    return html('div', {style: 'min-width:90px'}, meter);
  });
  add('', 0, c => [c.chosen ? 'chosen' : '', c.why].filter(Boolean).join(': '));
  section('candidates', 'Candidates considered',
      'Estimates that the choice was made by; the timeline above is simulated from the finished plan.',
      table(columns.map(c => [c.title, c.numeric]), list.map(c => ({chosen: c.chosen, cells: columns.map(column => column.cell(c))}))));
}

summary();
timeline();
balance();
memory();
traffic();
recomputation();
tradeoffs();
candidates();
if (data.text) section('decisions', 'Decisions', 'What the compiler said.', html('pre', {}, data.text));
document.getElementById('contents').replaceChildren(...sections.map(([id, title]) => html('a', {href: '#' + id}, title)));
document.documentElement.dataset.ready = '1';
})();
