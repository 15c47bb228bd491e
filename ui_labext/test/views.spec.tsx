import * as React from 'react';
import { act } from 'react';
import { createRoot, Root } from 'react-dom/client';

import { AFTER_FAILURE_MS, ASK_MS, Behind } from '../src/model/behind';
import { Feed } from '../src/model/feed';
import { Sessions } from '../src/model/sessions';
import { AGAIN_MS, Whys } from '../src/model/whys';
import { Banner } from '../src/view/banner';
import { Card } from '../src/view/card';
import { Panel } from '../src/view/panel';
import { Status } from '../src/view/status';
import { visible } from '../src/view/virtual';
import { DOCUMENT, sample, TEXTS } from './samples';

let page: HTMLElement;
let root: Root;
let feed: Feed;
const sessions = new Sessions();

beforeEach(() => {
  jest.useFakeTimers({ now: Date.UTC(2026, 0, 1, 10, 5) });
  page = document.body.appendChild(document.createElement('div'));
  root = createRoot(page);
  sessions.replace([]);
  feed = new Feed({ open: () => never(), list: async () => null }, sessions);
});

afterEach(async () => {
  await act(async () => root.unmount());
  feed.stop();
  page.remove();
  jest.useRealTimers();
});

async function* never(): AsyncIterable<string> {}

async function show(element: JSX.Element): Promise<void> {
  await act(async () => root.render(element));
}

async function pass(ms: number): Promise<void> {
  await act(async () => {
    await jest.advanceTimersByTimeAsync(ms);
  });
}

function query(selector: string): HTMLElement {
  const found = page.querySelector<HTMLElement>(selector);
  if (!found) {
    throw new Error(`no ${selector} in ${page.innerHTML}`);
  }
  return found;
}

test('a card says what a session is, why, and what one can do', async () => {
  const asked: string[] = [];
  const changes = { queue: { place: 2, ahead: 1 }, state: 'waiting', devices: [] };
  await show(
    <Card
      session={sample(changes)}
      why="place 2, expected in 40 s"
      now={Date.now()}
      texts={TEXTS}
      act={(verb, session) => asked.push(`${verb} ${session.id}`)}
    />
  );
  expect(page.textContent).toContain('waitingtrain.ipynbstandard');
  expect(page.textContent).toContain('place 2, expected in 40 s');
  expect(page.textContent).toContain('place 2 in the queue · wants 1 device · local');
  expect(page.textContent).toContain('checkpoint "good", 5 min ago');
  const buttons = [...page.querySelectorAll('button')];
  expect(buttons.map(button => button.getAttribute('aria-label'))).toEqual([
    'Checkpoint train.ipynb',
    'Suspend train.ipynb',
    'Migrate train.ipynb',
    'Cancel train.ipynb'
  ]);
  buttons[0]?.click();
  expect(asked).toEqual(['checkpoint a1']);
});

test('a transfer has a bar that is read aloud', async () => {
  const progress = { bytes_done: 512, bytes_total: 1024, rate: 0, eta_s: null };
  await show(<Card session={sample({ progress })} why="" now={0} texts={TEXTS} act={() => null} />);
  const bar = query('progress') as HTMLProgressElement;
  expect([bar.value, bar.max]).toEqual([512, 1024]);
  expect(bar.getAttribute('aria-valuetext')).toBe('512 B of 1.0 KiB');
});

test('only the cards in sight of 1,000 exist', async () => {
  const many = Array.from({ length: 1000 }, (_, n) => ({ ...DOCUMENT, id: `s${n}` }));
  const whys = new Whys(async () => '');
  sessions.replace(many);
  await show(
    <Panel sessions={sessions} feed={feed} whys={whys} texts={TEXTS} act={() => undefined} />
  );
  const rows = page.querySelectorAll('[role=listitem]');
  expect(rows.length).toBeGreaterThan(3);
  expect(rows.length).toBeLessThan(30);
  expect(rows[0]?.getAttribute('aria-setsize')).toBe('1000');
  await act(async () => {
    query('[role=list]').scrollTop = 148 * 500;
    query('[role=list]').dispatchEvent(new Event('scroll', { bubbles: true }));
  });
  const places = [...page.querySelectorAll('[role=listitem]')].map(row =>
    Number(row.getAttribute('aria-posinset'))
  );
  expect(places).toContain(502);
  expect(places).not.toContain(1);
});

test.each([
  [0, 600, 100, 1000, [0, 10]],
  [5000, 600, 100, 1000, [46, 60]],
  [9_999_999, 600, 100, 3, [2, 3]],
  [0, 600, 100, 0, [0, 0]]
])('rows in sight: %d px down, %d px high', (top, height, row, count, rows) => {
  expect(visible(top, height, row, count)).toEqual(rows);
});

test('the panel follows the sessions and says when there are none', async () => {
  const whys = new Whys(async () => 'place 1, expected in 10 s');
  await show(<Panel sessions={sessions} feed={feed} whys={whys} texts={TEXTS} act={() => null} />);
  expect(query('[role=status]').textContent).toBe('connecting to the scheduler');
  sessions.take('session', { ...DOCUMENT, state: 'waiting' });
  await pass(50);
  await pass(50);
  expect(query('[data-session=a1]').textContent).toContain('expected in 10 s');
  sessions.take('session', { ...DOCUMENT, state: 'running' });
  await pass(50);
  expect(query('[data-session=a1]').textContent).toContain('its code called a device');
});

test('the status item is of the active notebook, and opens the panel', async () => {
  sessions.replace([DOCUMENT]);
  const behind = new Behind(async () => new Map([['k1', 'a1']]), sessions);
  let kernel: string | null = null;
  let changed = () => undefined as void;
  let opened = 0;
  await show(
    <Status
      sessions={sessions}
      feed={feed}
      behind={behind}
      kernel={() => kernel}
      subscribe={listener => {
        changed = listener;
        return () => undefined;
      }}
      texts={TEXTS}
      open={() => (opened += 1)}
    />
  );
  expect(page.textContent).toBe('');
  kernel = 'k1';
  changed();
  await pass(50);
  await pass(50);
  expect(page.textContent).toBe('running · cpu:0 · standard · checkpoint "good", 5 min ago');
  expect(query('button').title).toBe('its code called a device');
  expect(query('svg').dataset.icon).toBe('play');
  query('button').click();
  expect(opened).toBe(1);
  await pass(120_000);
  expect(page.textContent).toContain('7 min ago');
});

test('the server is asked for a kernel without a session once, until there is a new one', async () => {
  let asked = 0;
  let answer = new Map<string, string>();
  const behind = new Behind(async () => {
    asked += 1;
    return answer;
  }, sessions);
  for (let n = 0; n < 5; n++) {
    expect(behind.session('k')).toBeNull();
    await pass(60_000);
  }
  expect(asked).toBe(1);
  answer = new Map([['k', 'a1']]);
  sessions.take('session', DOCUMENT);
  behind.session('k');
  await pass(ASK_MS);
  expect(behind.session('k')?.id).toBe('a1');
  sessions.take('session', { ...DOCUMENT, state: 'cancelled' }); // restarted
  sessions.take('session', { ...DOCUMENT, id: 'a2' });
  answer = new Map([['k', 'a2']]);
  behind.session('k');
  await pass(ASK_MS);
  expect(behind.session('k')?.id).toBe('a2');
  expect(asked).toBe(3);
});

test('a server that fails is asked for kernels every 30 s at most', async () => {
  const asked: number[] = [];
  const behind = new Behind(async () => {
    asked.push(Date.now());
    throw new Error('away');
  }, sessions);
  for (let s = 0; s < 120; s++) {
    behind.session('k');
    await pass(1000);
  }
  const gaps = asked.slice(1).map((at, n) => at - (asked[n] ?? 0));
  expect(gaps.length).toBeGreaterThan(2);
  expect(Math.min(...gaps)).toBeGreaterThanOrEqual(AFTER_FAILURE_MS);
});

test('a sentence is asked for again every 30 s at most', async () => {
  let asked = 0;
  const whys = new Whys(async () => `answer ${(asked += 1)}`);
  const waiting = sample({ state: 'waiting' });
  for (let s = 0; s < 61; s++) {
    whys.sentence(waiting);
    await pass(1000);
  }
  expect(asked).toBe(Math.ceil(61_000 / AGAIN_MS));
  expect(whys.sentence(waiting)).toBe(`answer ${asked}`);
  expect(whys.sentence(sample())).toBe('');
});

test('a banner that was dismissed comes back with something new only', () => {
  const banner = new Banner(TEXTS);
  expect(banner.isHidden).toBe(true);
  expect(banner.node.getAttribute('role')).toBe('status');
  banner.tell({ kind: 'taken', text: 'parked' });
  expect(banner.isHidden).toBe(false);
  banner.node.querySelector('button')?.click();
  banner.tell({ kind: 'taken', text: 'parked' });
  expect(banner.isHidden).toBe(true);
  banner.tell({ kind: 'returned', text: 'back' });
  expect(banner.isHidden).toBe(false);
  expect(banner.node.textContent).toContain('back');
  banner.tell(null);
  expect(banner.isHidden).toBe(true);
});
