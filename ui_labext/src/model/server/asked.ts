import { Refused } from './refused';

/** Requests that make something: each has a key by which the scheduler knows it again. After an
 * answer that was lost the same request goes out under the same key, and makes nothing a second
 * time. */
export class Asked {
  constructor(private readonly _newKey: () => string) {}

  /** Ask for something; `what` tells one request from another one. */
  async once<T>(what: string, ask: (key: string) => Promise<T>): Promise<T> {
    const key = this._keys.get(what) ?? this._newKey();
    this._keys.set(what, key);
    try {
      const answer = await ask(key);
      this._keys.delete(what);
      return answer;
    } catch (error) {
      if (error instanceof Refused && error.final) {
        this._keys.delete(what);
      }
      throw error;
    }
  }

  private readonly _keys = new Map<string, string>();
}
