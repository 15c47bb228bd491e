import { isObject, list, text, time } from '../server/json';
import { IPage } from '../server/load';

/** One change of a session's state. */
export interface IChange {
  at: number | null;
  state: string;
  reason: string;
}

/** What makes two changes the same one. */
export function changeKey(change: IChange): string {
  return `${change.at} ${change.state} ${change.reason}`;
}

function readChange(value: unknown): IChange | null {
  if (!isObject(value) || !text(value.state)) {
    return null;
  }
  return { at: time(value.at), state: text(value.state), reason: text(value.reason) };
}

/** The answer to `GET history`, whose page is oldest first, newest first; null: it is none. */
export function readHistory(value: unknown): IPage<IChange> | null {
  const changes = list(value, 'history', readChange);
  return (
    changes && { items: changes.reverse(), next: (isObject(value) && text(value.next)) || null }
  );
}
