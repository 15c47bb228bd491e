import { hasEnded, ISession, Listener, readPlace, readProgress, readSession } from './session';
import { Usage } from '../server/usage';

/** What a session was before a change (null: it was not known) and what it is now. */
export type ChangeListener = (before: ISession | null, now: ISession) => void;

/** The sessions of this user, kept by the events of the scheduler. */
export class Sessions {
  /** What their devices do. */
  readonly usage = new Usage();

  /** How many sessions of the last full list this page could not read. */
  unreadable = 0;

  get(id: string): ISession | null {
    return this._byId.get(id) ?? null;
  }

  /** All of them: those that have not ended first, newer ones before older ones. */
  get all(): readonly ISession[] {
    this._sorted ??= [...this._byId.values()].sort(
      (a, b) =>
        Number(hasEnded(a)) - Number(hasEnded(b)) ||
        (b.createdAt ?? 0) - (a.createdAt ?? 0) ||
        (a.id < b.id ? -1 : 1)
    );
    return this._sorted;
  }

  /** Call `listener` after each event; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  /** Call `listener` for each session that is new or of which something changed. */
  watch(listener: ChangeListener): () => void {
    this._watchers.add(listener);
    return () => this._watchers.delete(listener);
  }

  /** Everything there is; sessions that are not in it are gone. */
  replace(documents: unknown): void {
    const found = Array.isArray(documents) ? documents : [];
    const before = this._byId;
    this._byId = new Map();
    this.unreadable = Array.isArray(documents) ? 0 : 1;
    const changes: [ISession | null, ISession][] = [];
    for (const document of found) {
      const session = readSession(document);
      if (session) {
        this._byId.set(session.id, session);
        changes.push([before.get(session.id) ?? null, session]);
      } else {
        this.unreadable += 1;
      }
    }
    this.usage.keep(id => this._byId.has(id));
    this._tell(changes);
  }

  /** One event of the stream, as `GET events` describes them; others are left alone. */
  take(name: string, data: unknown): void {
    const document = (data ?? {}) as Record<string, unknown>;
    if (name === 'snapshot') {
      this.replace(document.sessions);
    } else if (name === 'session') {
      const session = readSession(data);
      if (session) {
        this._set([session]);
      }
    } else if (name === 'queue') {
      const places = Object.entries((document.places ?? {}) as Record<string, unknown>);
      this._change(places.map(([id, place]) => [id, { place: readPlace(place) }]));
    } else if (name === 'progress') {
      const progress = readProgress(document.progress);
      this._change([[String(document.session), { progress }]]);
    } else if (name === 'devices') {
      this.usage.take(data);
    }
  }

  private _change(changes: [string, Partial<ISession>][]): void {
    this._set(
      changes.flatMap(([id, change]) => {
        const known = this._byId.get(id);
        return known ? [{ ...known, ...change }] : [];
      })
    );
  }

  private _set(sessions: ISession[]): void {
    const changes = sessions.map((session): [ISession | null, ISession] => {
      const before = this._byId.get(session.id) ?? null;
      this._byId.set(session.id, session);
      return [before, session];
    });
    if (changes.length) {
      this._tell(changes);
    }
  }

  private _tell(changes: [ISession | null, ISession][]): void {
    this._sorted = null;
    for (const [before, now] of changes) {
      this._watchers.forEach(watcher => watcher(before, now));
    }
    this._listeners.forEach(listener => listener());
  }

  private _byId = new Map<string, ISession>();
  private _sorted: readonly ISession[] | null = null;
  private _listeners = new Set<Listener>();
  private _watchers = new Set<ChangeListener>();
}
