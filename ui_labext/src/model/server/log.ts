import { pause, wait } from './feed';
import { isObject, text } from './json';
import { Refused, sentence } from './refused';
import { Listener } from '../sessions/session';
import { EventParser } from './sse';

/** So much of the end of a log is asked for, in bytes. */
export const TAIL_BYTES = 64 * 1024;

/** So much of a log is kept in the page, in characters; older lines make room. */
export const KEEP = 256 * 1024;

/** Where a log comes from: the text of a stream of `log`, `end` and `away` events. */
export interface ILogSource {
  /** From byte `offset` on; null: from `TAIL_BYTES` before the end on. */
  log(session: string, offset: number | null, signal: AbortSignal): AsyncIterable<string>;
}

/** What a session's process printed, followed until the session has ended or nobody looks. */
export class Log {
  /** As much of the end as is kept. */
  text = '';
  /** Whether there is more before it, which is not shown. */
  cut = false;
  /** `refused`: there is none, `why` says why. `lost`: `why`, and it is tried again. */
  state: 'loading' | 'following' | 'ended' | 'lost' | 'refused' = 'loading';
  why = '';

  constructor(
    private readonly _source: ILogSource,
    private readonly _session: string,
    private readonly _random: () => number = Math.random
  ) {}

  /** Follow it; resolves when it is over, was refused, or after `stop`. */
  async start(): Promise<void> {
    const { signal } = this._stop;
    let attempt = 0;
    while (!signal.aborted) {
      const before = this._offset;
      const over = await this._follow(signal);
      if (over || signal.aborted) {
        return;
      }
      attempt = this._offset === before ? attempt + 1 : 0;
      await wait(pause(attempt, this._random()), signal);
    }
  }

  stop(): void {
    this._stop.abort();
    this._listeners.clear();
  }

  /** Call `listener` after each change; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  /** Read one stream; whether there is nothing more to come. */
  private async _follow(signal: AbortSignal): Promise<boolean> {
    const parser = new EventParser();
    let why = '';
    try {
      for await (const piece of this._source.log(this._session, this._offset, signal)) {
        for (const { name, data } of parser.push(piece)) {
          if (name === 'log') {
            this._take(data);
          } else if (name === 'end') {
            this._become('ended');
            return true;
          } else if (name === 'away') {
            why = isObject(data) ? text(data.message) : '';
          }
          if (name !== 'away' && this.state !== 'following') {
            this._become('following');
          }
        }
      }
    } catch (error) {
      if (error instanceof Refused && error.final) {
        this._become('refused', error.message);
        return true;
      }
      why = sentence(error);
    }
    this._become('lost', why);
    return false;
  }

  private _take(data: unknown): void {
    if (!isObject(data) || typeof data.next !== 'number') {
      return;
    }
    let piece = text(data.text);
    const first = this._offset === null;
    this._offset = data.next;
    if (first && data.next > new Blob([piece]).size) {
      // It begins somewhere in a line.
      this.cut = true;
      piece = piece.slice(piece.indexOf('\n') + 1);
    }
    this.text += piece;
    if (this.text.length > KEEP) {
      this.cut = true;
      const begin = this.text.length - KEEP;
      this.text = this.text.slice(this.text.indexOf('\n', begin) + 1 || begin);
    }
    this._become('following');
  }

  private _become(state: Log['state'], why = ''): void {
    this.state = state;
    this.why = why;
    this._listeners.forEach(listener => listener());
  }

  private _offset: number | null = null;
  private readonly _stop = new AbortController();
  private readonly _listeners = new Set<Listener>();
}

/** A log as text to read: without the codes of terminals, of lines that were written over what was
 * left of them. */
export function plain(log: string): string {
  const text = log.replace(/\x1b\[[0-9;?]*[ -/]*[@-~]/g, '').replace(/\r\n/g, '\n');
  return text.replace(/^.*\r(?=[^\n])/gm, '').replace(/\r/g, '');
}
