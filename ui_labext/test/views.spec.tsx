import * as React from 'react';
import { act } from 'react';
import { createRoot, Root } from 'react-dom/client';

import { AFTER_FAILURE_MS, ASK_MS, Behind } from '../src/model/sessions/behind';
import { Feed } from '../src/model/server/feed';
import { Followed } from '../src/model/sessions/followed';
import { Sessions } from '../src/model/sessions/sessions';
import { AGAIN_MS, Whys } from '../src/model/words/whys';
import { Status } from '../src/view/status';
import { DOCUMENT, sample, TEXTS, why } from './support/samples';

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

test('the status item is of the active notebook, and opens the panel', async () => {
  sessions.replace([DOCUMENT]);
  const behind = new Behind(async () => new Map([['k1', 'a1']]), sessions);
  let kernel: string | null = null;
  const followed = new Followed(() => kernel, sessions, behind);
  let changed = () => undefined as void;
  let opened = 0;
  await show(
    <Status
      feed={feed}
      session={() => followed.session}
      subscribe={listener => {
        changed = listener;
        return followed.follow(listener);
      }}
      texts={TEXTS}
      open={() => (opened += 1)}
    />
  );
  expect(page.textContent).toBe('');
  kernel = 'k1';
  followed.look();
  changed();
  await pass(50);
  await pass(50);
  expect(page.textContent).toBe('running · cpu:0 · standard · checkpoint 5 min ago');
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
  const whys = new Whys(async () => why(`answer ${(asked += 1)}`));
  const waiting = sample({ state: 'waiting' });
  for (let s = 0; s < 61; s++) {
    whys.of(waiting);
    await pass(1000);
  }
  expect(asked).toBe(Math.ceil(61_000 / AGAIN_MS));
  expect(whys.of(waiting)?.sentence).toBe(`answer ${asked}`);
  expect(whys.of(sample())).toBeNull();
});
