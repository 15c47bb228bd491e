import { isObject, text } from './json';

/** Where the notebook that a run writes is. */
export interface IOutput {
  /** On its node; empty: it writes none. */
  file: string;
  /** Below the root of this server; null: it is elsewhere. */
  path: string | null;
  /** Whether it is there as this server sees it. */
  exists: boolean;
}

export function readOutput(value: unknown): IOutput {
  const found = isObject(value) ? value : {};
  return {
    file: text(found.file),
    path: text(found.path) || null,
    exists: found.exists === true
  };
}
