import { sentence } from './refused';
import { Listener } from '../sessions/session';

/** Something that is asked of the server: what it answered last, and whether it could not. */
abstract class Asked<T> {
  /** The newest answer; null: none so far. */
  value: T | null = null;
  /** Why the last question has no answer, as a sentence; empty: it has one. */
  error = '';
  /** Whether a question is under way. */
  busy = false;

  /** Ask; when a question is under way, whose answer may be too old, once more after it. */
  async refresh(): Promise<void> {
    this._again = true;
    if (this.busy) {
      return;
    }
    while (this._again && !this._stop.signal.aborted) {
      this._again = false;
      this.busy = true;
      this._tell();
      try {
        this.value = await this.ask(this._stop.signal);
        this.error = '';
      } catch (error) {
        this.error = sentence(error);
      }
      this.busy = false;
      this._tell();
    }
  }

  /** Nobody looks any more. */
  stop(): void {
    this._stop.abort();
    this._listeners.clear();
  }

  /** Call `listener` after each change; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  protected abstract ask(signal: AbortSignal): Promise<T>;

  private _tell(): void {
    this._listeners.forEach(listener => listener());
  }

  private _again = false;
  private readonly _stop = new AbortController();
  private readonly _listeners = new Set<Listener>();
}

/** One answer, replaced by the next one. */
export class Load<T> extends Asked<T> {
  constructor(private readonly _question: (signal: AbortSignal) => Promise<T>) {
    super();
  }

  protected override ask(signal: AbortSignal): Promise<T> {
    return this._question(signal);
  }
}

/** Part of a long list, newest first. */
export interface IPage<T> {
  items: T[];
  /** Where older ones begin; null: there are none. */
  next: string | null;
}

/** A long list of which the newest part is known, and as much of the rest as was asked for. */
export class Paged<T> extends Asked<IPage<T>> {
  /** `key`: what makes two items the same one. */
  constructor(
    private readonly _page: (cursor: string | null, signal: AbortSignal) => Promise<IPage<T>>,
    private readonly _key: (item: T) => string
  ) {
    super();
  }

  /** Ask for the page of items before those that are known. */
  older(): Promise<void> {
    this._wantsOlder = true;
    return this.refresh();
  }

  protected override async ask(signal: AbortSignal): Promise<IPage<T>> {
    const wantsOlder = this._wantsOlder;
    this._wantsOlder = false;
    if (wantsOlder && this.value?.next) {
      const page = await this._page(this.value.next, signal);
      return { items: this._joined(this.value.items, page.items), next: page.next };
    }
    const page = await this._page(null, signal);
    const newest = new Set(page.items.map(this._key));
    const known = this.value?.items ?? [];
    // Where nothing is in both, something between the two is missing: then it begins anew.
    return known.some(item => newest.has(this._key(item)))
      ? { items: this._joined(page.items, known), next: this.value?.next ?? null }
      : page;
  }

  private _joined(first: T[], then: T[]): T[] {
    const known = new Set(first.map(this._key));
    return [...first, ...then.filter(item => !known.has(this._key(item)))];
  }

  private _wantsOlder = false;
}
