import { ISession } from '../sessions/session';
import { isOffered, SECTION_STARTS, Verb, VERBS } from './verbs';

/** A command of a menu, or a line between two sections. */
export type Entry = { verb: Verb } | { command: string } | 'line';

/** What the menu of a session has, in order: what can be done with it, then the commands in
 * `more`, and its end, which is last and stands alone. */
export function entriesOf(session: ISession, more: readonly string[]): Entry[] {
  const sections: Entry[][] = [[]];
  for (const verb of VERBS) {
    if (SECTION_STARTS.includes(verb)) {
      sections.push([]);
    }
    if (isOffered(verb, session)) {
      sections[sections.length - 1]?.push({ verb });
    }
  }
  sections.splice(
    -1,
    0,
    more.map(command => ({ command }))
  );
  return sections
    .filter(section => section.length)
    .flatMap((section, number) => (number ? ['line' as const, ...section] : section));
}
