import { Details, IDetailsSource, Part } from './details';
import { EVERYTHING, IFilter } from './filter';
import { IPage, Paged } from '../server/load';
import { ISession, Listener } from './session';
import { Sessions } from './sessions';

/** What the sidebar asks the server. */
export interface ISidebarSource extends IDetailsSource {
  past(cursor: string | null, signal: AbortSignal): Promise<IPage<ISession>>;
}

/** What a person looks at in the sidebar: which sessions, and which one of them is open. */
export class Sidebar {
  /** Sessions as the scheduler's archive has them, ended ones too. */
  readonly past: Paged<ISession>;
  filter: IFilter = EVERYTHING;
  /** Of the card that is open; null: none is. */
  details: Details | null = null;
  /** A card to bring into sight, and how often that was asked for. */
  reveal = { session: '', times: 0 };

  constructor(
    private readonly _source: ISidebarSource,
    private readonly _sessions: Sessions
  ) {
    this.past = new Paged(
      (cursor, signal) => _source.past(cursor, signal),
      session => session.id
    );
  }

  /** A session, though it may have ended long ago. */
  session(id: string): ISession | null {
    return this._sessions.get(id) ?? this.past.value?.items.find(each => each.id === id) ?? null;
  }

  choose(change: Partial<IFilter>): void {
    this.filter = { ...this.filter, ...change };
    this._tell();
  }

  /** Open the card of a session, at a part of it, and bring it into sight. */
  show(session: string, part: Part = this._lastPart): void {
    this.filter = EVERYTHING;
    this.reveal = { session, times: this.reveal.times + 1 };
    this._open(session, part);
  }

  /** Open the card of a session in place of another one; close it when it is open. */
  toggle(session: string): void {
    if (this.details?.session === session) {
      this.close();
    } else {
      this._open(session, this._lastPart);
    }
  }

  close(): void {
    this._closedAt = this._lastPart;
    this.details?.stop();
    this.details = null;
    this._tell();
  }

  /** Call `listener` after each change; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    const stop = this.past.subscribe(listener);
    return () => {
      this._listeners.delete(listener);
      stop();
    };
  }

  private _open(session: string, part: Part): void {
    if (this.details?.session === session) {
      this.details.show(part);
    } else {
      this.details?.stop();
      this.details = new Details(session, this._source, this._sessions, part);
    }
    this._tell();
  }

  /** What people looked at last: the next card is opened there. */
  private get _lastPart(): Part {
    return this.details?.part ?? this._closedAt;
  }

  private _tell(): void {
    this._listeners.forEach(listener => listener());
  }

  private _closedAt: Part = 'checkpoints';
  private readonly _listeners = new Set<Listener>();
}
