import { nextNotice } from '../src/model/notice';
import { call, isOffered, VERBS, target } from '../src/model/verbs';
import {
  bytes,
  checkpointText,
  deviceText,
  duration,
  look,
  progressText,
  stateWord
} from '../src/model/words';
import { sample, TEXTS } from './samples';

test('sizes and durations have one unit', () => {
  expect([0, 1023, 1536, 200 * 1024 ** 2, 5e15].map(bytes)).toEqual([
    '0 B',
    '1023 B',
    '1.5 KiB',
    '200 MiB',
    '4547 TiB'
  ]);
  expect([-3, 40, 200, 7200, 2e5].map(s => duration(s, TEXTS))).toEqual([
    '0 s',
    '40 s',
    '3 min',
    '2 h',
    '2 d'
  ]);
});

test('a state of a newer server is shown as it is', () => {
  expect(stateWord('hovering', TEXTS)).toBe('hovering');
  expect(look('hovering').icon).toBe('unknown');
  expect(look('constructor').icon).toBe('unknown');
  expect(stateWord('constructor', TEXTS)).toBe('constructor');
});

test('devices, checkpoint and progress in words', () => {
  const now = Date.UTC(2026, 0, 1, 10, 5);
  expect(deviceText(sample(), TEXTS)).toBe('cpu:0');
  expect(deviceText(sample({ devices: [], virtual_devices: 2, state: 'waiting' }), TEXTS)).toBe(
    'wants 2 devices'
  );
  expect(deviceText(sample({ devices: [], state: 'parked' }), TEXTS)).toBe('no device');
  expect(checkpointText(sample(), now, TEXTS)).toBe('checkpoint "good", 5 min ago');
  expect(checkpointText(sample({ last_checkpoint: null }), now, TEXTS)).toBe('no checkpoint');
  const progress = { bytesDone: 1024, bytesTotal: 2048, rate: 512, etaS: 2 };
  expect(progressText(progress, TEXTS)).toBe('1.0 KiB of 2.0 KiB, 512 B/s, 2 s left');
});

test('verbs are offered where they make sense', () => {
  const offered = (changes: Record<string, unknown>) =>
    VERBS.filter(verb => isOffered(verb, sample(changes)));
  expect(offered({})).toEqual(VERBS.filter(verb => verb !== 'resume'));
  expect(offered({ state: 'parked', device_state: 'parked' })).toContain('resume');
  expect(offered({ state: 'suspended', process_state: 'suspended' })).toEqual([
    'resume',
    'migrate',
    'tier',
    'restore',
    'fork',
    'cancel'
  ]);
  expect(offered({ state: 'completed', process_state: 'completed' })).toEqual(['fork']);
  expect(offered({ kind: 'batch', run: { output: '/o.ipynb' } })).not.toContain('fork');
  expect(offered({ last_checkpoint: null, checkpoints: 0 })).not.toContain('restore');
});

test('a verb is one request', () => {
  expect(call('checkpoint', 'a/b', { name: 'before lr' })).toEqual({
    method: 'POST',
    path: 'a%2Fb/checkpoint',
    body: { name: 'before lr' }
  });
  expect(call('cancel', 'a', {})).toEqual({ method: 'DELETE', path: 'a', body: null });
});

test('a migration goes to a device or to a node', () => {
  expect(['', '1', 'cuda:1', ' node-2 '].map(target)).toEqual([
    {},
    { device: 1 },
    { device: 'cuda:1' },
    { node: 'node-2' }
  ]);
});

test('a taken session is told with its reason until it is back', () => {
  const running = sample();
  const parked = sample({ state: 'parked', reason: 'parked for bob/eval, nothing is lost' });
  const taken = nextNotice(running, parked, null, TEXTS);
  expect(taken?.text).toBe(
    'Your session is parked: parked for bob/eval, nothing is lost. Run any cell to come back.'
  );
  const held = sample({ state: 'parked', held_back: true });
  expect(nextNotice(running, held, null, TEXTS)?.text).toMatch(/Resume it to go on\.$/);
  expect(nextNotice(parked, sample({ state: 'attaching' }), taken ?? null, TEXTS)).toBeNull();
  expect(nextNotice(running, running, null, TEXTS)).toBeUndefined();
});

test('a return from the store is told with what was lost', () => {
  const away = sample({ state: 'suspended' });
  const loss = { back: ['variables'], lost: ['a socket'], rolled_back: true, at: '2026-01-01' };
  const notice = nextNotice(away, sample({ loss }), null, TEXTS);
  expect(notice?.kind).toBe('returned');
  expect(notice?.text).toBe(
    'Your session is back. Back: variables. Not back: a socket. ' +
      'What it did after the checkpoint is undone.'
  );
  expect(nextNotice(sample({ loss }), sample({ loss }), notice ?? null, TEXTS)).toBeUndefined();
});
