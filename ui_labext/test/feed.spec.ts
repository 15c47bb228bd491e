import {
  Feed,
  FIRST_PAUSE_MS,
  ISource,
  linkText,
  LONGEST_PAUSE_MS,
  pause,
  POLL_MS,
  SILENCE_MS
} from '../src/model/server/feed';
import { Sessions } from '../src/model/sessions/sessions';
import { EventParser } from '../src/model/server/sse';
import { DOCUMENT, TEXTS } from './support/samples';

const SNAPSHOT = `event: snapshot\ndata: ${JSON.stringify({ sessions: [DOCUMENT] })}\n\n`;

/** A server whose streams the test fills by hand. */
class Server implements ISource {
  opened: number[] = [];
  polled: number[] = [];
  refuse: string | null = null;
  listing: unknown = { sessions: [] };
  listRefusal: string | null = null;

  async *open(signal: AbortSignal): AsyncIterable<string> {
    this.opened.push(Date.now());
    if (this.refuse) {
      throw new Error(this.refuse);
    }
    this._pieces = [];
    while (!signal.aborted) {
      const next = this._pieces.shift();
      if (next === null) {
        return;
      }
      if (next !== undefined) {
        yield next;
      } else {
        await new Promise<void>(resolve => {
          this._more = resolve;
          signal.addEventListener('abort', () => resolve());
        });
      }
    }
    throw new Error('aborted');
  }

  async list(): Promise<unknown> {
    this.polled.push(Date.now());
    if (this.listRefusal) {
      throw new Error(this.listRefusal);
    }
    return this.listing;
  }

  async send(piece: string | null): Promise<void> {
    this._pieces.push(piece);
    this._more();
    await jest.advanceTimersByTimeAsync(0);
  }

  private _pieces: (string | null)[] = [];
  private _more: () => void = () => undefined;
}

let server: Server;
let sessions: Sessions;
let feed: Feed;
let done: Promise<void>;

beforeEach(async () => {
  jest.useFakeTimers({ now: new Date(2026, 0, 1, 14, 2) });
  server = new Server();
  sessions = new Sessions();
  feed = new Feed(server, sessions, () => 1 - Number.EPSILON);
});

afterEach(async () => {
  feed.stop();
  await jest.advanceTimersByTimeAsync(0);
  await done;
  jest.useRealTimers();
});

async function begin(): Promise<void> {
  done = feed.start();
  await jest.advanceTimersByTimeAsync(0);
}

test('it is live with the first snapshot, which may come in pieces', async () => {
  await begin();
  expect(feed.link.state).toBe('connecting');
  await server.send(SNAPSHOT.slice(0, 50));
  expect(feed.link.state).toBe('connecting');
  await server.send(SNAPSHOT.slice(50));
  expect(feed.link.state).toBe('live');
  expect(sessions.all.map(s => s.id)).toEqual(['a1']);
});

test('a lost stream is told with the time of what is shown, and opened again', async () => {
  await begin();
  await server.send(SNAPSHOT);
  await jest.advanceTimersByTimeAsync(20_000);
  await server.send('event: away\ndata: {"message": "the scheduler stops"}\n\n');
  await server.send(null);
  expect(linkText(feed.link, 0, TEXTS)).toMatch(
    /^connection lost, last known state of .*02.* \(the scheduler stops\)$/
  );
  expect(sessions.all).toHaveLength(1);
  await jest.advanceTimersByTimeAsync(FIRST_PAUSE_MS);
  expect(server.opened).toHaveLength(2);
  await server.send(SNAPSHOT);
  expect(linkText(feed.link, 0, TEXTS)).toBe('');
});

test('pauses double up to a limit, with chance in them', () => {
  expect([0, 1, 2, 3].map(attempt => pause(attempt, 1))).toEqual([1000, 2000, 4000, 8000]);
  expect(pause(50, 1)).toBe(LONGEST_PAUSE_MS);
  expect(pause(0, 0)).toBe(500);
});

test('a server that refuses is asked less and less often, and polled every 30 s at most', async () => {
  server.refuse = 'there is no scheduler';
  server.listRefusal = 'there is no scheduler';
  await begin();
  await jest.advanceTimersByTimeAsync(10 * 60_000);
  const gaps = server.opened.slice(1).map((at, n) => at - (server.opened[n] ?? 0));
  expect(gaps.slice(0, 4).map(gap => Math.round(gap / 1000))).toEqual([1, 2, 4, 8]);
  expect(Math.max(...gaps)).toBeLessThanOrEqual(LONGEST_PAUSE_MS);
  const polls = server.polled.slice(1).map((at, n) => at - (server.polled[n] ?? 0));
  expect(polls.length).toBeGreaterThan(5);
  expect(Math.min(...polls)).toBeGreaterThanOrEqual(POLL_MS);
  expect(linkText(feed.link, 0, TEXTS)).toBe(
    'no connection to the scheduler (there is no scheduler)'
  );
});

test('without a stream the list is shown with the time at which it was asked for', async () => {
  server.refuse = '502 Bad Gateway';
  server.listing = { sessions: [DOCUMENT] };
  await begin();
  await jest.advanceTimersByTimeAsync(5 * 60_000);
  expect(sessions.all).toHaveLength(1);
  expect(feed.link.state).toBe('lost');
  expect(feed.link.known).toBe(server.polled[server.polled.length - 1]);
});

test('a stream that is silent is given up; heartbeats keep it', async () => {
  await begin();
  await server.send(SNAPSHOT);
  for (let n = 0; n < 10; n++) {
    await jest.advanceTimersByTimeAsync(15_000);
    await server.send(': still here\n\n');
  }
  expect(server.opened).toHaveLength(1);
  expect(feed.link).toMatchObject({ state: 'live', known: Date.now() });
  await jest.advanceTimersByTimeAsync(SILENCE_MS);
  expect(feed.link).toMatchObject({ state: 'lost', why: 'the server is silent' });
  await jest.advanceTimersByTimeAsync(FIRST_PAUSE_MS);
  expect(server.opened).toHaveLength(2);
});

test('a stream that ends at once again and again is no success', async () => {
  await begin();
  for (let n = 0; n < 6; n++) {
    await server.send(SNAPSHOT);
    await server.send(null);
    await jest.advanceTimersByTimeAsync(LONGEST_PAUSE_MS);
  }
  const gaps = server.opened.slice(1).map((at, n) => at - (server.opened[n] ?? 0));
  expect(gaps[4]).toBeGreaterThan(10_000);
});

test('answers of another version are one line and nothing else', async () => {
  await begin();
  await server.send('event: snapshot\ndata: {"sessions": [{"uuid": 1}, {"uuid": 2}]}\n\n');
  await server.send('event: tomorrow\ndata: {"new": true}\n\nevent: session\ndata: {not json\n\n');
  await server.send(`event: session\ndata: ${JSON.stringify(DOCUMENT)}\n\n`);
  expect(feed.link.state).toBe('live');
  expect(sessions.all).toHaveLength(1);
  expect(linkText(feed.link, sessions.unreadable, TEXTS)).toBe(
    'the scheduler is of another version: 2 sessions cannot be shown'
  );
});

test('nothing is asked after a stop', async () => {
  await begin();
  feed.stop();
  await done;
  await jest.advanceTimersByTimeAsync(10 * 60_000);
  expect(server.opened).toHaveLength(1);
  expect(server.polled).toHaveLength(0);
});

test('lines may end with CR LF, data may have several lines', () => {
  const parser = new EventParser();
  expect(parser.push('event: a\r\ndata: [1,\r\ndata: 2]\r\n\r\n:hi\n')).toEqual([
    { name: 'a', data: [1, 2] },
    { name: '', data: null }
  ]);
  expect(parser.push('id: 7\n\ndata: 1\n\n')).toEqual([{ name: 'message', data: 1 }]);
});
