import { inWords, Own, sentence } from './refused';
import { Listener } from '../sessions/session';
import { EventParser } from './sse';
import { clock, ITexts } from '../words/words';

/** First pause before the stream is opened again; doubled with each failure in a row. */
export const FIRST_PAUSE_MS = 1_000;

/** Longest pause before the stream is opened again. */
export const LONGEST_PAUSE_MS = 60_000;

/** While there is no stream the list is asked for, never more often than this. */
export const POLL_MS = 30_000;

/** A stream that is silent for this long is dead: the server sends a heartbeat every 15 s. */
export const SILENCE_MS = 45_000;

/** A stream that lasted this long counts as a success: the pauses begin anew. */
export const LASTED_MS = 10_000;

/** Where the sessions come from. Both raise an error with a sentence for people. */
export interface ISource {
  /** The text of the event stream, piece by piece, until it ends or `signal` is aborted. */
  open(signal: AbortSignal): AsyncIterable<string>;
  /** The JSON of `GET sessions`. */
  list(signal: AbortSignal): Promise<unknown>;
}

/** Who is told what the source says: the sessions of a page, or a page that shows them. */
export interface IReader {
  /** One event of the stream. */
  take(name: string, data: unknown): void;
  /** Everything there is, where the stream could not be followed. */
  replace(documents: unknown): void;
}

/** How current the sessions are. */
export interface ILink {
  state: 'connecting' | 'live' | 'lost';
  /** When the sessions were last known to be right, in ms since 1970; null: never so far. */
  known: number | null;
  /** Why the connection is lost, as a sentence. */
  why: string;
}

/** Pause before attempt `attempt` (0: the first one after a loss); `random` is in [0, 1). */
export function pause(attempt: number, random: number): number {
  const longest = Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** attempt);
  return longest * (0.5 + random / 2);
}

/** Resolves after `ms`, or when `signal` is aborted. */
export function wait(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done);
  });
}

/** Keeps `sessions` current by the event stream, and by asking now and then while there is none. */
export class Feed {
  constructor(
    private readonly _source: ISource,
    private readonly _sessions: IReader,
    private readonly _random: () => number = Math.random
  ) {}

  get link(): ILink {
    return this._link;
  }

  /** Call `listener` when `link` changed; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  /** Follow the stream until `stop`; resolves after that. */
  async start(): Promise<void> {
    const { signal } = this._stop;
    let attempt = 0;
    let polled = -Infinity;
    while (!signal.aborted) {
      const opened = Date.now();
      const why = await this._follow(signal);
      if (signal.aborted) {
        return;
      }
      this._become({ state: 'lost', known: this._link.known, why });
      attempt = Date.now() - opened >= LASTED_MS ? 0 : attempt + 1;
      if (attempt > 1 && Date.now() - polled >= POLL_MS) {
        polled = Date.now();
        await this._poll(signal);
      }
      await this._rest(pause(Math.max(0, attempt - 1), this._random()), signal);
    }
  }

  stop(): void {
    this._stop.abort();
  }

  /** Open the stream now instead of after the pause. */
  retry(): void {
    this._wake();
  }

  private async _rest(ms: number, stop: AbortSignal): Promise<void> {
    const awake = new AbortController();
    this._wake = () => awake.abort();
    stop.addEventListener('abort', this._wake);
    await wait(ms, awake.signal);
    stop.removeEventListener('abort', this._wake);
  }

  /** Read one stream to its end; returns why it ended. */
  private async _follow(stop: AbortSignal): Promise<string> {
    const dead = new AbortController();
    const end = () => dead.abort();
    stop.addEventListener('abort', end);
    let silence = setTimeout(end, SILENCE_MS);
    const parser = new EventParser();
    let why: string = Own.streamEnded;
    try {
      for await (const piece of this._source.open(dead.signal)) {
        clearTimeout(silence);
        silence = setTimeout(end, SILENCE_MS);
        for (const { name, data } of parser.push(piece)) {
          if (name === 'away') {
            why = String((data as { message?: unknown } | null)?.message ?? why);
            continue;
          }
          this._sessions.take(name, data);
          // What else comes first (a heartbeat) says nothing about the sessions.
          if (name === 'snapshot' || this._link.state === 'live') {
            this._become({ state: 'live', known: Date.now(), why: '' });
          }
        }
      }
    } catch (error) {
      why = dead.signal.aborted ? Own.silent : sentence(error);
    } finally {
      clearTimeout(silence);
      stop.removeEventListener('abort', end);
      dead.abort();
    }
    return why;
  }

  private async _poll(signal: AbortSignal): Promise<void> {
    try {
      const answer = (await this._source.list(signal)) as { sessions?: unknown } | null;
      this._sessions.replace(answer?.sessions);
      this._become({ ...this._link, known: Date.now() });
    } catch (error) {
      this._become({ ...this._link, why: sentence(error) });
    }
  }

  private _become(link: ILink): void {
    const same = link.state === 'live' && this._link.state === 'live';
    this._link = link;
    if (!same) {
      this._listeners.forEach(listener => listener());
    }
  }

  private _link: ILink = { state: 'connecting', known: null, why: '' };
  private _wake: () => void = () => undefined;
  private readonly _stop = new AbortController();
  private readonly _listeners = new Set<Listener>();
}

/** The one line about how current the list is and what is wrong with it; "": all is well. */
export function linkText(link: ILink, unreadable: number, texts: ITexts): string {
  if (link.state === 'connecting') {
    return texts.__('connecting to the scheduler');
  }
  if (link.state === 'lost') {
    const lost =
      link.known === null
        ? texts.__('no connection to the scheduler')
        : texts.__('connection lost, last known state of %1', clock(link.known));
    return link.why ? `${lost} (${inWords(link.why, texts)})` : lost;
  }
  if (unreadable) {
    return texts._n(
      'the scheduler is of another version: %1 session cannot be shown',
      'the scheduler is of another version: %1 sessions cannot be shown',
      unreadable
    );
  }
  return '';
}
