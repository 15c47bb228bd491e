import { readSession } from '../src/model/sessions/session';
import { Sessions } from '../src/model/sessions/sessions';
import { DOCUMENT, sample } from './support/samples';

function named(...ids: string[]) {
  return { sessions: ids.map(id => ({ ...DOCUMENT, id })) };
}

test('a session is read from the JSON of the API', () => {
  const session = sample({ queue: { place: 2, ahead: 1 }, progress: { bytes_done: 5, eta_s: 1 } });
  expect(session).toMatchObject({ id: 'a1', processState: 'live', devices: ['cpu:0'], place: 2 });
  expect(session.checkpoint).toMatchObject({ name: 'good', at: Date.UTC(2026, 0, 1, 10) });
  expect(session.progress).toEqual({ bytesDone: 5, bytesTotal: 0, rate: 0, etaS: 1 });
});

test.each([null, 7, 'a', [], {}, { id: 'a' }, { id: 3, state: 'ready' }])(
  '%j is no session',
  document => {
    expect(readSession(document)).toBeNull();
  }
);

test('keys that are missing, of another type or new do not matter', () => {
  const older = readSession({ id: 'a', state: 'ready' });
  expect(older).toMatchObject({ name: 'a', devices: [], checkpoint: null, place: null });
  const newer = sample({ devices: { cpu: 1 }, queue: 7, last_checkpoint: 'x', colour: 'red' });
  expect(newer).toMatchObject({ devices: [], place: null, checkpoint: null });
});

test('a snapshot replaces all, and counts what cannot be read', () => {
  const sessions = new Sessions();
  sessions.take('snapshot', named('a', 'b'));
  sessions.take('snapshot', { sessions: [{ ...DOCUMENT, id: 'b' }, { what: 'else' }] });
  expect(sessions.all.map(s => s.id)).toEqual(['b']);
  expect(sessions.unreadable).toBe(1);
  sessions.take('snapshot', { everything: [] });
  expect(sessions.unreadable).toBe(1);
  expect(sessions.all).toEqual([]);
});

test('places and progress change the session they are of', () => {
  const sessions = new Sessions();
  sessions.take('snapshot', named('a', 'b'));
  sessions.take('queue', { places: { a: 3, gone: 1 } });
  sessions.take('progress', { session: 'b', progress: { bytes_done: 1, bytes_total: 2 } });
  expect(sessions.get('a')?.place).toBe(3);
  expect(sessions.get('b')?.progress?.bytesTotal).toBe(2);
  sessions.take('queue', { places: { a: null } });
  sessions.take('progress', { session: 'b', progress: null });
  expect(sessions.get('a')?.place).toBeNull();
  expect(sessions.get('b')?.progress).toBeNull();
});

test('running ones come first, then newer ones', () => {
  const sessions = new Sessions();
  const at = (day: number) => `2026-01-0${day}T00:00:00Z`;
  sessions.replace([
    { ...DOCUMENT, id: 'ended', state: 'failed', created_at: at(9) },
    { ...DOCUMENT, id: 'old', created_at: at(1) },
    { ...DOCUMENT, id: 'new', created_at: at(2) }
  ]);
  expect(sessions.all.map(s => s.id)).toEqual(['new', 'old', 'ended']);
});

test('listeners hear of changes, watchers of what was before', () => {
  const sessions = new Sessions();
  let heard = 0;
  const changes: [string | undefined, string][] = [];
  const stop = sessions.subscribe(() => (heard += 1));
  sessions.watch((before, now) => changes.push([before?.state, now.state]));
  sessions.take('snapshot', named('a'));
  sessions.take('session', { ...DOCUMENT, id: 'a', state: 'parked' });
  sessions.take('no such event', { id: 'a' });
  sessions.take('session', 'what');
  expect(heard).toBe(2);
  expect(changes).toEqual([
    [undefined, 'running'],
    ['running', 'parked']
  ]);
  stop();
  sessions.take('snapshot', named());
  expect(heard).toBe(2);
});

test.each(['queue', 'progress', 'snapshot', 'session'])('%s without data harms nothing', name => {
  const sessions = new Sessions();
  sessions.take(name, null);
  sessions.take(name, { places: null, session: null, sessions: null, progress: 7 });
  expect(sessions.all).toEqual([]);
});
