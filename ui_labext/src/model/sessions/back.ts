import { isObject, text } from '../server/json';

/** A session whose end was taken back, or a fork, as its server lists it. */
export interface IBack {
  /** Of its kernel; empty: this server does not list it. */
  kernel: string;
  /** Its notebook below the server's root; null: nobody knows. */
  path: string | null;
}

/** The server's answer to `reopen` and `fork`. */
export function readBack(value: unknown): IBack {
  const found = isObject(value) && isObject(value.kernel) ? value.kernel : {};
  return { kernel: text(found.id), path: text(found.path) || null };
}

/** What to do for a person who took an end back, or forked. */
export type Next = 'open' | 'connect' | 'say';

/**
 * `open`: open the notebook with its old kernel; `connect`: it is open and has no kernel; `say`:
 * only say that it is there, also when its notebook has another kernel by now, which would end.
 */
export function nextOf(back: IBack, isOpen: boolean, hasKernel: boolean): Next {
  if (!back.kernel || back.path === null) {
    return 'say';
  }
  if (!isOpen) {
    return 'open';
  }
  return hasKernel ? 'say' : 'connect';
}
