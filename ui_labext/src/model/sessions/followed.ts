import { Behind } from './behind';
import { ISession } from './session';
import { Sessions } from './sessions';

/** What was known of the notebook's session before (null: it is another one, or was not known),
 * and what it is now; null: there is none. */
export type Follower = (before: ISession | null, now: ISession | null) => void;

/** The session behind one notebook, whatever becomes of its kernel. */
export class Followed {
  /** `_kernel`: the id of the notebook's kernel now; null: it has none. */
  constructor(
    private readonly _kernel: () => string | null,
    sessions: Sessions,
    private readonly _behind: Behind
  ) {
    this._stops = [sessions.subscribe(() => this.look()), _behind.subscribe(() => this.look())];
    this.look();
  }

  /** As far as it is known. */
  get session(): ISession | null {
    return this._session;
  }

  /** Call `follower` when the session changed or is another one; returns how to stop that. */
  follow(follower: Follower): () => void {
    this._followers.add(follower);
    return () => this._followers.delete(follower);
  }

  /** The kernel is another one, or was started anew. */
  started(): void {
    const kernel = this._kernel();
    if (kernel) {
      this._behind.renew(kernel);
    }
    this.look();
  }

  /** Something changed. */
  look(): void {
    const kernel = this._kernel();
    const now = kernel ? this._behind.session(kernel) : null;
    const known = this._session;
    if (now !== known) {
      this._session = now;
      const before = known && known.id === now?.id ? known : null;
      this._followers.forEach(follower => follower(before, now));
    }
  }

  dispose(): void {
    this._stops.forEach(stop => stop());
    this._followers.clear();
  }

  private _session: ISession | null = null;
  private readonly _followers = new Set<Follower>();
  private readonly _stops: (() => void)[];
}
