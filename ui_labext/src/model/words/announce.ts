import { ISession, Listener } from '../sessions/session';
import { Sessions } from '../sessions/sessions';
import { ITexts, stateWord } from './words';

/** What is worth interrupting a person who listens. */
const IMPORTANT = new Set(['parked', 'suspended', 'completed', 'failed', 'cancelled']);

/** Says what people must hear of who do not see the page. */
export class Announcer {
  /** The newest important change; empty: none so far. */
  text = '';

  constructor(sessions: Sessions, texts: ITexts) {
    sessions.watch((before, now) => this._look(before, now, texts));
  }

  /** Call `listener` when `text` changed; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  private _look(before: ISession | null, now: ISession, texts: ITexts): void {
    if (before && before.state !== now.state && IMPORTANT.has(now.state)) {
      this.text = `${now.name}: ${stateWord(now.state, texts)}, ${now.reason}`;
      this._listeners.forEach(listener => listener());
    }
  }

  private readonly _listeners = new Set<Listener>();
}
