import { changeKey, IChange } from './history';
import { IPage, Load, Paged } from '../server/load';
import { ILogSource, Log } from '../server/log';
import { ISession, Listener } from './session';
import { Sessions } from './sessions';
import { IStored } from './stored';

/** What is asked about an opened session. */
export interface IDetailsSource extends ILogSource {
  checkpoints(session: string, signal: AbortSignal): Promise<IStored[]>;
  history(session: string, cursor: string | null, signal: AbortSignal): Promise<IPage<IChange>>;
}

/** The parts of an opened session that can be looked at, one at a time. */
export type Part = 'checkpoints' | 'timeline' | 'log' | 'devices';

export const PARTS: readonly Part[] = ['checkpoints', 'timeline', 'log', 'devices'];

/** An opened session: what is asked for while somebody looks at it, and asked anew when the session
 * has changed. */
export class Details {
  readonly checkpoints: Load<IStored[]>;
  readonly history: Paged<IChange>;
  log: Log | null = null;

  constructor(
    readonly session: string,
    private readonly _source: IDetailsSource,
    sessions: Sessions,
    first: Part
  ) {
    this._part = first;
    this.checkpoints = new Load(signal => _source.checkpoints(session, signal));
    this.history = new Paged((at, signal) => _source.history(session, at, signal), changeKey);
    this._unwatch = sessions.watch((before, now) => {
      if (now.id === session) {
        this._changed(before, now);
      }
    });
    this.show(first);
  }

  get part(): Part {
    return this._part;
  }

  /** Look at another part. */
  show(part: Part): void {
    this._part = part;
    if (part !== 'log') {
      this._endLog();
    }
    this.refresh();
    this._tell();
  }

  /** Ask anew for what is looked at. */
  refresh(): void {
    switch (this._part) {
      case 'checkpoints':
        void this.checkpoints.refresh();
        break;
      case 'timeline':
        void this.history.refresh();
        break;
      case 'log':
        this._endLog();
        this.log = new Log(this._source, this.session);
        this.log.subscribe(() => this._tell());
        void this.log.start();
        break;
      case 'devices': // events keep them current
    }
  }

  /** Nobody looks any more. */
  stop(): void {
    this._unwatch();
    this._endLog();
    this.checkpoints.stop();
    this.history.stop();
    this._listeners.clear();
  }

  /** Call `listener` after each change; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    const stops = [this.checkpoints.subscribe(listener), this.history.subscribe(listener)];
    return () => {
      this._listeners.delete(listener);
      stops.forEach(stop => stop());
    };
  }

  private _changed(before: ISession | null, now: ISession): void {
    const other = (key: keyof ISession) => before?.[key] !== now[key];
    const [old, last] = [before?.checkpoint, now.checkpoint];
    const tried = old?.provedAt !== last?.provedAt || old?.unproved !== last?.unproved;
    const fresh = old?.id !== last?.id || tried || other('checkpoints');
    const moved = other('state') || other('reason');
    const refused = this.log?.state === 'refused' && other('processState');
    if (
      (this._part === 'checkpoints' && fresh) ||
      (this._part === 'timeline' && moved) ||
      (this._part === 'log' && refused)
    ) {
      this.refresh();
    }
  }

  private _endLog(): void {
    this.log?.stop();
    this.log = null;
  }

  private _tell(): void {
    this._listeners.forEach(listener => listener());
  }

  private _part: Part;
  private readonly _unwatch: () => void;
  private readonly _listeners = new Set<Listener>();
}
