/** How the JSON of the scheduler is read: what is missing or of another type counts as unknown. */

export type Json = Record<string, unknown>;

export function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

export function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

export function flag(value: unknown): boolean {
  return value === true;
}

/** A number; null: unknown. */
export function numberOrNull(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? value : null;
}

/** A number that is not negative; 0: unknown. */
export function count(value: unknown): number {
  return countOrNull(value) ?? 0;
}

/** A number that is not negative; null: unknown. */
export function countOrNull(value: unknown): number | null {
  return typeof value === 'number' && Number.isFinite(value) ? Math.max(0, value) : null;
}

/** The whole numbers from 1 on in a list. */
export function counts(value: unknown): number[] {
  return Array.isArray(value) ? value.filter(item => Number.isInteger(item) && item > 0) : [];
}

export function texts(value: unknown): string[] {
  return Array.isArray(value) ? value.filter(item => typeof item === 'string') : [];
}

/** What a list below a key is read to, without what cannot be read; null: there is no list. */
export function list<T>(
  value: unknown,
  key: string,
  read: (item: unknown) => T | null
): T[] | null {
  const found = isObject(value) ? value[key] : null;
  return Array.isArray(found) ? found.flatMap(item => read(item) ?? []) : null;
}

/** ISO 8601 as milliseconds since 1970; null: unknown. */
export function time(value: unknown): number | null {
  const at = typeof value === 'string' ? Date.parse(value) : NaN;
  return Number.isNaN(at) ? null : at;
}
