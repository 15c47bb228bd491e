import * as React from 'react';
import { act } from 'react';
import { createRoot } from 'react-dom/client';

import { ASK_MS, Behind } from '../src/model/sessions/behind';
import { Feed } from '../src/model/server/feed';
import { Followed } from '../src/model/sessions/followed';
import { kernelStatus } from '../src/model/sessions/kernel';
import { AHEAD_MS, INotice, nextNotice, READ_MS } from '../src/model/words/notice';
import { ISession } from '../src/model/sessions/session';
import { Sessions } from '../src/model/sessions/sessions';
import { IStanding, readStanding, STANDING_MS, Standings } from '../src/model/sessions/standing';
import { cellsWait } from '../src/model/words/waits';
import { remaining } from '../src/model/words/words';
import { Banner } from '../src/view/banner';
import { SessionButton } from '../src/view/button';
import { markPrompts } from '../src/view/prompts';
import { DOCUMENT, sample, TEXTS } from './support/samples';

const NOW = Date.UTC(2026, 0, 1, 10, 5);

beforeEach(() => jest.useFakeTimers({ now: NOW }));
afterEach(() => jest.useRealTimers());

async function pass(ms: number): Promise<void> {
  await act(async () => {
    await jest.advanceTimersByTimeAsync(ms);
  });
}

const TAKEN: IStanding = {
  by: 'alice/train',
  tier: 'premium',
  rule: 'preempt.tier',
  place: 1,
  highS: 180
};

function notice(
  before: ISession | null,
  now: ISession,
  standing: IStanding | null = null,
  shown: INotice | null = null
): INotice | null | undefined {
  return nextNotice(before, now, standing, shown, NOW, TEXTS);
}

describe('the notice above a notebook', () => {
  const running = sample();
  const parked = sample({ state: 'parked', reason: 'parked by itself; nothing is lost' });

  test('says who has the devices, that nothing is lost, and when they are back', () => {
    expect(notice(running, parked, TAKEN)?.text).toBe(
      'Your device went to alice/train (premium). Nothing is lost; you are next, about 3 min. ' +
        'Run any cell to come back.'
    );
    const two = sample({ state: 'parked', virtual_devices: 2 });
    const unknown = { ...TAKEN, tier: '', place: null, highS: null };
    expect(notice(running, two, unknown)?.text).toBe(
      'Your 2 devices went to alice/train. Nothing is lost. Run any cell to come back.'
    );
  });

  test('has the reason when nobody took them, or nothing is known', () => {
    const told = 'Your session is parked: parked by itself; nothing is lost. ';
    expect(notice(running, parked)?.text).toBe(`${told}Run any cell to come back.`);
    const person = { ...TAKEN, by: 'root', rule: 'user.preempt' };
    const held = sample({ state: 'parked', held_back: true, reason: 'preempted by root' });
    expect(notice(running, held, person)).toMatchObject({
      text: 'Your session is parked: preempted by root. Resume it to go on.',
      offers: 'resume'
    });
  });

  test('stays while a cell waits for what was taken, and goes when it is back', () => {
    const shown = notice(running, parked, TAKEN) ?? null;
    const waiting = sample({ state: 'waiting' });
    expect(notice(parked, waiting, TAKEN, shown)?.text).toMatch(/Your cell goes on by itself\.$/);
    expect(notice(null, waiting, TAKEN)?.kind).toBe('taken'); // of a page that was just opened
    expect(notice(null, waiting)).toBeUndefined(); // of one that has had no device yet
    expect(notice(waiting, running, null, shown)).toBeNull();
    expect(notice(running, running)).toBeUndefined();
  });

  test('asks for no cell while the session already waits to come back', () => {
    const called = sample({ state: 'suspended', reason: 'no room', queue: { place: 2, ahead: 1 } });
    expect(notice(running, called)?.text).toBe(
      'Your session is suspended: no room. It goes on by itself.'
    );
  });

  test('becomes a report of what came back', () => {
    const away = sample({ state: 'suspended' });
    const loss = { back: ['variables'], lost: ['a socket'], rolled_back: true, at: '2026-01-01' };
    const back = notice(away, sample({ loss })) ?? null;
    expect(back?.kind).toBe('returned');
    expect(back?.text).toBe(
      'Your session is back. What it did after the checkpoint is undone. ' +
        'Not as it was: a socket. Back: variables.'
    );
    expect(notice(sample({ loss }), sample({ loss }), null, back)).toBeUndefined();
  });

  test('reports what came back though that was told on the way, and there is no device', () => {
    const loss = { back: ['variables'], lost: [], rolled_back: false, at: '2026-01-01' };
    const gone = notice(running, sample({ state: 'suspended' })) ?? null;
    const resuming = sample({ state: 'resuming', loss });
    const way = notice(sample({ state: 'suspended' }), resuming, null, gone) ?? null;
    expect(way?.kind).toBe('taken');
    expect(way?.text).toMatch(/ It goes on by itself\.$/); // nobody has to run a cell for it
    const there = sample({ state: 'parked', loss });
    const back = notice(resuming, there, null, way) ?? null;
    expect(back?.text).toBe('Your session is back. Nothing was lost. Back: variables.');
    expect(notice(there, there, null, back)).toBeUndefined();
    const again = sample({ state: 'suspending', loss });
    expect(notice(there, again, null, back)?.kind).toBe('taken');
    expect(notice(null, there)?.kind).toBe('taken'); // of a page that was just opened
  });

  const RETURN = { back: ['2 processes'], lost: [], rolled_back: false, at: '2026-01-01' };
  const live = (loss: object, busy = false, more = {}) => sample({ loss, busy, ...more });

  test('of what came back is not true of the session that follows it', () => {
    const back = notice(sample({ state: 'resuming' }), live(RETURN)) ?? null;
    expect(back?.text).toBe('Your session is back. Nothing was lost. Back: 2 processes.');
    const restarted = sample({ id: 'b2', state: 'ready', device_state: 'none', devices: [] });
    expect(notice(null, restarted, null, back)).toBeNull();
    expect(notice(null, sample({ id: 'b2' }), null, back)).toBeNull();
    const parked = sample({ id: 'b2', state: 'parked', reason: 'parked by ada' });
    expect(notice(null, parked, null, back)?.text).toContain('parked by ada');
  });

  test('of what came back is not true of a session that has ended since', () => {
    const back = notice(sample({ state: 'resuming' }), live(RETURN)) ?? null;
    const failed = sample({ loss: RETURN, state: 'failed', process_state: 'failed' });
    expect(notice(live(RETURN), failed, null, back)).toBeNull();
    expect(notice(null, failed)).toBeUndefined();
  });

  test('that all came back goes with the end of a cell, but not of the one that called it', () => {
    const [rests, busy] = [live(RETURN), live(RETURN, true)];
    const back = notice(sample({ state: 'resuming' }), rests) ?? null;
    expect(notice(rests, busy, null, back)).toBeUndefined();
    expect(notice(busy, rests, null, back)).toBeUndefined();
    const later = (before: ISession, now: ISession, shown: INotice | null) =>
      nextNotice(before, now, null, shown, NOW + READ_MS, TEXTS);
    const begun = later(rests, busy, back) ?? null;
    expect(begun).toMatchObject({ text: back?.text, key: back?.key });
    expect(later(busy, busy, begun)).toBeUndefined();
    expect(later(busy, rests, begun)).toBeNull();
    const attaching = live(RETURN, true, { state: 'attaching' });
    expect(later(rests, attaching, back)).toEqual(begun);
  });

  test('that says what is not as it was stays until it was read', () => {
    const loss = { ...RETURN, lost: ['a.csv was changed', 'a socket'] };
    const back = notice(sample({ state: 'resuming' }), live(loss)) ?? null;
    expect(back?.text).toContain('Not as it was: a.csv was changed; a socket.');
    expect(notice(live(loss), live(loss, true), null, back)).toBeUndefined();
    expect(notice(live(loss, true), live(loss), null, back)).toBeUndefined();
  });

  test('warns of what others took and of what waits, not of a session that rests', () => {
    expect(notice(null, parked)?.isCalm).toBe(true);
    expect(notice(null, sample({ state: 'suspended' }))?.isCalm).toBe(true);
    expect(notice(running, parked, TAKEN)?.isCalm).toBe(false);
    expect(notice(running, sample({ state: 'parked', held_back: true }))?.isCalm).toBe(false);
    expect(notice(null, sample({ state: 'waiting' }), TAKEN)?.isCalm).toBe(false);
    const banner = new Banner(TEXTS, () => undefined);
    banner.tell(notice(null, parked) ?? null);
    expect(banner.hasClass('jp-mod-calm')).toBe(true);
    banner.tell(notice(running, parked, TAKEN) ?? null);
    expect(banner.hasClass('jp-mod-calm')).toBe(false);
    banner.dispose();
  });

  test('says that devices were taken because they were idle', () => {
    const idle = { ...TAKEN, rule: 'preempt.idle', tier: 'basic', place: null, highS: null };
    expect(notice(running, parked, idle)?.text).toBe(
      'Your device was idle and went to alice/train (basic). Nothing is lost. Run any cell to come back.'
    );
    const two = sample({ state: 'parked', virtual_devices: 2 });
    expect(notice(running, two, idle)?.text).toContain('Your 2 devices were idle and went to ');
  });

  test('counts no seconds of what is there at once', () => {
    const soon = { ...TAKEN, highS: 0.4 };
    expect(notice(running, parked, soon)?.text).toContain('you are next, within a second.');
  });

  const at = (ms: number) => new Date(NOW + ms).toISOString();
  const plan = (what: string, rule: string, when: string | null) =>
    sample({ planned: { what, at: when, rule, why: 'no call reaches its devices' } });

  test('announces what is near, with what prevents it', () => {
    const soon = notice(null, plan('park', 'idle.reclaim', at(60_000)));
    expect(soon).toMatchObject({ kind: 'planned', at: NOW + 60_000, offers: 'keep' });
    expect(soon?.text).toBe(
      'Its devices are about to be freed: no call reaches its devices. Nothing is lost.'
    );
    const drain = notice(null, plan('suspend', 'node.drain', null));
    expect(drain).toMatchObject({ kind: 'planned', at: null, offers: null });
    expect(notice(null, plan('end', 'node.drain', at(1000)))?.text).toMatch(/about to end/);
  });

  test('says nothing of what is far, and nothing any more of what was prevented', () => {
    const soon = notice(null, plan('park', 'idle.reclaim', at(60_000))) ?? null;
    const far = plan('park', 'idle.reclaim', at(AHEAD_MS + 1));
    expect(notice(null, far)).toBeUndefined();
    expect(notice(null, far, null, soon)).toBeNull();
    expect(notice(null, sample({ planned: { at: at(1) } }))).toBeUndefined();
  });
});

describe('the banner', () => {
  const taken: INotice = { kind: 'taken', key: 'taken', text: 'gone', at: null, offers: null };

  test('that was dismissed comes back with something new only', () => {
    const banner = new Banner(TEXTS, () => undefined);
    expect(banner.isHidden).toBe(true);
    banner.tell(taken);
    expect(banner.isHidden).toBe(false);
    expect(banner.node.querySelector('[role=status]')?.textContent).toBe('gone');
    banner.node.querySelectorAll('button')[1]?.click();
    expect(banner.isHidden).toBe(true);
    banner.tell({ ...taken, text: 'gone, place 2' });
    expect(banner.isHidden).toBe(true);
    banner.tell({ ...taken, kind: 'returned', key: 'returned 1', text: 'back' });
    expect(banner.isHidden).toBe(false);
    banner.tell(null);
    expect(banner.isHidden).toBe(true);
    banner.tell(taken);
    expect(banner.isHidden).toBe(false);
    banner.dispose();
  });

  test('counts seconds without reading them aloud, and offers to keep the session', () => {
    const done: string[] = [];
    const banner = new Banner(TEXTS, offer => done.push(offer));
    banner.tell({ kind: 'planned', key: 'p', text: 'soon', at: NOW + 61_000, offers: 'keep' });
    const clock = banner.node.querySelector('[role=timer]');
    expect(clock?.getAttribute('aria-live')).toBe('off');
    expect(clock?.textContent).toBe('in 1:01');
    jest.advanceTimersByTime(2000);
    expect(clock?.textContent).toBe('in 0:59');
    const button = banner.node.querySelector('button');
    expect(button?.textContent).toBe('Keep alive');
    button?.click();
    expect(done).toEqual(['keep']);
    banner.tell(null);
    expect(clock?.textContent).toBe('');
    expect(jest.getTimerCount()).toBe(0);
    expect(remaining(-5, TEXTS)).toBe('now');
    banner.dispose();
  });
});

test('a standing is read from what `why` answers, whatever it lacks', () => {
  const facts = {
    place: 2,
    preempted: { by: 'bob/eval', tier: 'premium', rule: 'preempt.tier' },
    estimate: { high_s: 40.5 }
  };
  expect(readStanding({ facts })).toEqual({
    by: 'bob/eval',
    tier: 'premium',
    rule: 'preempt.tier',
    place: 2,
    highS: 40.5
  });
  const nothing = { by: '', tier: '', rule: '', place: null, highS: null };
  for (const answer of [null, 7, {}, { facts: [] }, { facts: { preempted: 1, place: 0 } }]) {
    expect(readStanding(answer)).toEqual(nothing);
  }
});

test('a standing is asked for once per state and every 30 s at most', async () => {
  let asked = 0;
  let fails = false;
  const standings = new Standings(async () => {
    asked += 1;
    if (fails) {
      throw new Error('away');
    }
    return TAKEN;
  });
  let heard = 0;
  standings.subscribe(() => (heard += 1));
  const waiting = sample({ state: 'waiting' });
  expect(standings.of(waiting)).toBeNull();
  await pass(1000);
  expect(standings.of(waiting)).toEqual(TAKEN);
  expect([asked, heard]).toEqual([1, 1]);
  standings.of(sample({ state: 'parked' }));
  await pass(STANDING_MS - 1000);
  standings.of(sample({ state: 'parked' }));
  expect(asked).toBe(2);
  fails = true;
  await pass(1000);
  standings.of(sample({ state: 'parked' }));
  await pass(1000);
  expect(asked).toBe(3);
  expect(standings.of(sample({ state: 'parked' }))).toBeNull();
});

test('a notebook is followed through changes of its session and its kernel', async () => {
  const sessions = new Sessions();
  let asked = 0;
  sessions.replace([DOCUMENT, { ...DOCUMENT, id: 'b2' }]);
  const behind = new Behind(async () => {
    asked += 1;
    return new Map([
      ['k1', 'a1'],
      ['k2', 'b2']
    ]);
  }, sessions);
  let kernel: string | null = null;
  const followed = new Followed(() => kernel, sessions, behind);
  const seen: [string | undefined, string | undefined][] = [];
  followed.follow((before, now) =>
    seen.push([before?.state, now ? `${now.id} ${now.state}` : undefined])
  );
  kernel = 'k1';
  followed.look();
  await pass(ASK_MS);
  sessions.take('session', { ...DOCUMENT, state: 'parked' });
  sessions.take('session', { ...DOCUMENT, id: 'b2', state: 'waiting' });
  kernel = 'k2';
  followed.look();
  followed.started(); // what was known holds until the server has been asked again
  expect(asked).toBe(1);
  await pass(ASK_MS);
  expect(asked).toBe(2);
  kernel = null;
  followed.look();
  expect(seen).toEqual([
    [undefined, 'a1 running'],
    ['running', 'a1 parked'],
    [undefined, 'b2 waiting'],
    [undefined, undefined]
  ]);
  followed.dispose();
});

test.each([
  ['unknown', { state: 'suspended' }, true, 'idle'],
  ['unknown', { state: 'parked', busy: true }, true, 'busy'],
  ['connecting', { state: 'resuming' }, true, 'idle'],
  ['disconnected', { state: 'suspended' }, false, 'idle'],
  ['unknown', { state: 'running', busy: true }, true, 'busy'],
  ['unknown', { state: 'running' }, false, 'unknown'],
  ['connecting', { state: 'running' }, true, 'connecting'],
  ['dead', { state: 'suspended' }, true, 'dead'],
  ['restarting', { state: 'parked' }, true, 'restarting'],
  ['idle', { state: 'suspended' }, true, 'idle'],
  ['unknown', { state: 'cancelled' }, true, 'unknown']
])(
  'the kernel of which "%s" was heard, session %o, current %s: %s',
  (heard, changes, live, word) => {
    expect(kernelStatus(heard, sample({ busy: false, ...changes }), live)).toBe(word);
  }
);

test('a kernel without a session says what it says', () => {
  expect(kernelStatus('unknown', null, true)).toBe('unknown');
});

test('cells wait while there is no device, or no process', () => {
  const why = (state: string) => cellsWait(sample({ state, reason: 'place 1' }), TEXTS);
  expect(why('waiting')).toBe('Waits for a device: place 1');
  expect(why('suspended')).toBe('Waits until the session is back: place 1');
  expect(why('migrating')).toMatch(/has moved: place 1/);
  expect(['running', 'ready', 'parked', 'completed'].map(why)).toEqual(['', '', '', '']);
  expect(cellsWait(null, TEXTS)).toBe('');
});

test('a mark is drawn at the prompts of cells that were run, and taken away', () => {
  const cell = (type: string, executionState: string, drawn = true) => {
    const node = document.createElement('div');
    node.innerHTML = drawn ? '<div class="jp-InputPrompt">[*]:</div>' : '';
    return {
      node,
      model: { type, executionState },
      addClass: (name: string) => node.classList.add(name),
      removeClass: (name: string) => node.classList.remove(name),
      hasClass: (name: string) => node.classList.contains(name)
    };
  };
  const cells = [
    cell('code', 'running'),
    cell('code', 'idle'),
    cell('markdown', 'running'),
    cell('code', 'running', false)
  ];
  const given = cells as unknown as Parameters<typeof markPrompts>[0];
  markPrompts(given, 'Waits for a device: place 1');
  const marks = () => cells.map(each => each.node.querySelector('[title]')?.getAttribute('title'));
  expect(marks()).toEqual(['Waits for a device: place 1', undefined, undefined, undefined]);
  const prompt = cells[0]?.node.firstElementChild;
  expect(prompt?.getAttribute('aria-label')).toBe('Waits for a device: place 1');
  expect(prompt?.textContent).toBe('[*]:');
  markPrompts(given, '');
  expect(marks()).toEqual([undefined, undefined, undefined, undefined]);
  expect(cells[0]?.node.className).toBe('');
});

test('the button in the toolbar has the state and opens a menu', async () => {
  const sessions = new Sessions();
  sessions.replace([DOCUMENT]);
  const behind = new Behind(async () => new Map([['k1', 'a1']]), sessions);
  const followed = new Followed(() => 'k1', sessions, behind);
  async function* never(): AsyncIterable<string> {}
  const feed = new Feed({ open: never, list: async () => null }, sessions);
  const page = document.body.appendChild(document.createElement('div'));
  const root = createRoot(page);
  let opened = 0;
  await act(async () =>
    root.render(
      <SessionButton followed={followed} feed={feed} texts={TEXTS} open={() => (opened += 1)} />
    )
  );
  expect(page.textContent).toBe('');
  await pass(ASK_MS);
  await pass(50);
  const button = page.querySelector('button');
  expect(button?.textContent).toBe('running');
  expect(button?.getAttribute('aria-haspopup')).toBe('menu');
  expect(button?.title).toBe('its code called a device\ncpu:0');
  button?.click();
  expect(opened).toBe(1);
  sessions.take('session', { ...DOCUMENT, state: 'parked', devices: [] });
  await pass(50);
  expect(button?.dataset.state).toBe('parked');
  await act(async () => root.unmount());
  followed.dispose();
});
