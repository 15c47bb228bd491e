import { call, commandLabel, isOffered, VERBS, target } from '../src/model/words/verbs';
import {
  bytes,
  checkpointAge,
  checkpointText,
  deviceText,
  duration,
  look,
  progressText,
  stateWord
} from '../src/model/words/words';
import { sample, TEXTS } from './support/samples';

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

test('devices and checkpoints in words', () => {
  const now = Date.UTC(2026, 0, 1, 10, 5);
  expect(deviceText(sample(), TEXTS)).toBe('cpu:0');
  expect(deviceText(sample({ devices: [], virtual_devices: 2, state: 'waiting' }), TEXTS)).toBe(
    'wants 2 devices'
  );
  expect(deviceText(sample({ devices: [], state: 'parked' }), TEXTS)).toBe('no device');
  const stored = (changes: object) => sample({ last_checkpoint: { id: 'c1', ...changes } });
  const named = stored({ name: 'good', at: '2026-01-01T10:00:00Z' });
  expect(checkpointText(named, now, TEXTS)).toBe('checkpoint 5 min ago: "good"');
  expect(checkpointAge(named, now, TEXTS)).toBe('checkpoint 5 min ago');
  expect(checkpointText(stored({ name: 'good' }), now, TEXTS)).toBe('checkpoint stored: "good"');
  expect(checkpointText(stored({}), now, TEXTS)).toBe('checkpoint stored');
  expect(checkpointText(sample({ last_checkpoint: null }), now, TEXTS)).toBe('no checkpoint');
});

test('an ended session says where it can go back to', () => {
  const now = Date.UTC(2026, 0, 1, 10, 5);
  const said = (id: string, name: string) =>
    checkpointText(
      sample({
        undo_end: { checkpoint: 'k1', name, until: null },
        last_checkpoint: { id, name, at: '2026-01-01T10:00:00Z' }
      }),
      now,
      TEXTS
    );
  expect(said('k1', 'good')).toBe('go back to "good", 5 min ago');
  expect(said('k1', '')).toBe('go back to its checkpoint, 5 min ago');
  // The newest one is another, which nothing comes back from.
  expect(said('k2', '')).toBe('go back to its checkpoint');
});

test('progress in words', () => {
  const progress = { bytesDone: 1024, bytesTotal: 2048, rate: 512, etaS: 2 };
  expect(progressText(progress, TEXTS)).toBe('1.0 KiB of 2.0 KiB, 2 s left, 512 B/s');
});

test('verbs are offered where they make sense', () => {
  const offered = (changes: Record<string, unknown>) =>
    VERBS.filter(verb => isOffered(verb, sample(changes)));
  expect(offered({})).toEqual(VERBS.filter(verb => !['resume', 'resize', 'reopen'].includes(verb)));
  expect(offered({ undo_end: { checkpoint: 'c1', name: '', until: null } })).toContain('reopen');
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

test('commands say what they are done with', () => {
  const labels = VERBS.map(verb => commandLabel(verb, TEXTS));
  expect(new Set(labels).size).toBe(VERBS.length);
  expect(labels.every(label => /\bsession\b/.test(label))).toBe(true);
  expect(labels).toContain('Keep session alive');
});

test('a migration goes to a device or to a node', () => {
  expect(['', '1', 'cuda:1', ' node-2 '].map(target)).toEqual([
    {},
    { device: 1 },
    { device: 'cuda:1' },
    { node: 'node-2' }
  ]);
});
