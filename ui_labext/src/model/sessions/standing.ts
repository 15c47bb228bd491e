import { countOrNull, isObject, text } from '../server/json';
import { ISession, Listener, readPlace } from './session';

/** Nothing is asked about the same state of a session again before this long has gone by. */
export const STANDING_MS = 30_000;

/** Who took a session's devices, and when it may have some again. */
export interface IStanding {
  /** The session that has them, or the person who said so; empty: nobody, or unknown. */
  by: string;
  /** That session's tier; empty: no matter. */
  tier: string;
  /** The rule by which they were taken; empty: they were not. */
  rule: string;
  /** Place in the queue, 1 is served next; null: it does not wait. */
  place: number | null;
  /** Seconds until it has devices, at the latest; null: nobody can say. */
  highS: number | null;
}

function object(value: unknown): Record<string, unknown> {
  return isObject(value) ? value : {};
}

/** From the JSON of `GET sessions/ID/why`; what it lacks counts as unknown. */
export function readStanding(answer: unknown): IStanding {
  const facts = object(object(answer).facts);
  const taken = object(facts.preempted);
  return {
    by: text(taken.by),
    tier: text(taken.tier),
    rule: text(taken.rule),
    place: readPlace(facts.place),
    highS: countOrNull(object(facts.estimate).high_s)
  };
}

/** Keeps what is known about the standing of sessions that somebody looks at. */
export class Standings {
  constructor(private readonly _ask: (session: string) => Promise<IStanding>) {}

  /** As far as it is known; asks when that is of another state, or old. */
  of(session: ISession): IStanding | null {
    const state = `${session.state} ${session.place} ${session.reason}`;
    const told = this._told.get(session.id);
    if (!told || told.state !== state || Date.now() - told.at >= STANDING_MS) {
      void this._look(session.id, state, told?.standing ?? null);
    }
    return told?.standing ?? null;
  }

  /** Nobody looks at it any more. */
  forget(session: string): void {
    this._told.delete(session);
  }

  /** Call `listener` when an answer came; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  private async _look(id: string, state: string, before: IStanding | null): Promise<void> {
    const asked = { at: Date.now(), state, standing: before };
    this._told.set(id, asked);
    try {
      asked.standing = await this._ask(id);
    } catch {
      asked.standing = null; // the reason of the session is shown instead
    }
    if (this._told.get(id) === asked) {
      this._listeners.forEach(listener => listener());
    }
  }

  private readonly _told = new Map<
    string,
    { at: number; state: string; standing: IStanding | null }
  >();
  private readonly _listeners = new Set<Listener>();
}
