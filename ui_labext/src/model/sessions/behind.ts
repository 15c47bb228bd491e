import { hasEnded, ISession, Listener } from './session';
import { Sessions } from './sessions';

/** Two questions to the server are at least this far apart. */
export const ASK_MS = 2_000;

/** After a failure the next question is this far away. */
export const AFTER_FAILURE_MS = 30_000;

/**
 * Which session is behind a kernel. The server is asked when somebody looks for a kernel that it
 * has not told, and again when new sessions appear: a restarted kernel keeps its id and has
 * another session. Nothing is asked while nothing changes.
 */
export class Behind {
  constructor(
    private readonly _ask: () => Promise<Map<string, string>>,
    private readonly _sessions: Sessions
  ) {
    _sessions.watch((before, now) => {
      if (!before && !hasEnded(now)) {
        this._without.clear();
      }
    });
  }

  /** The session behind a kernel, as far as it is known now; null: none, or not known yet. */
  session(kernel: string): ISession | null {
    const id = this._known.get(kernel);
    const session = id === undefined ? null : this._sessions.get(id);
    const old = !session || hasEnded(session) || this._stale.has(kernel);
    if (old && !this._without.has(kernel)) {
      this._wanted.add(kernel);
      this._look();
    }
    return session;
  }

  /** Ask anew when somebody looks: the kernel was started or restarted. Until there is an answer
   * the one before it holds. */
  renew(kernel: string): void {
    this._without.delete(kernel);
    this._stale.add(kernel);
  }

  /** Call `listener` when the server told something new; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  private _look(): void {
    if (this._timer === null) {
      const pause = Math.max(0, this._next - Date.now());
      this._timer = setTimeout(() => void this._now(), pause);
    }
  }

  private async _now(): Promise<void> {
    this._next = Date.now() + ASK_MS;
    const wanted = this._wanted;
    this._wanted = new Set();
    try {
      this._known = await this._ask();
    } catch {
      // The line about the connection says that the server does not answer; a later look asks.
      this._next = Date.now() + AFTER_FAILURE_MS;
      return;
    } finally {
      this._timer = null;
    }
    for (const kernel of wanted) {
      this._without.add(kernel); // until a new session appears, this is the answer
      this._stale.delete(kernel);
    }
    this._listeners.forEach(listener => listener());
  }

  private _known = new Map<string, string>();
  /** Kernels for which the newest answer is all there is. */
  private readonly _without = new Set<string>();
  /** Kernels that were started since. */
  private readonly _stale = new Set<string>();
  private _wanted = new Set<string>();
  private _next = -Infinity;
  private _timer: ReturnType<typeof setTimeout> | null = null;
  private readonly _listeners = new Set<Listener>();
}
