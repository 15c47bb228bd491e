import { ISession, otherSizes } from '../sessions/session';
import { KEEP_S, TIERS, Verb } from './verbs';

/** Keys of the body of a verb that is chosen from a menu. */
export type Choice = Record<string, string | number>;

/** The tiers that are open to a session's user, but the one that it has; the best one first. */
export function otherTiers(session: ISession, open: readonly string[]): string[] {
  const known = TIERS.filter(tier => open.includes(tier));
  return [...known, ...open.filter(tier => !known.includes(tier))].filter(
    tier => tier !== session.tier
  );
}

/** What there is to choose from where a verb has a menu of its own; null: it has none. */
export function choices(verb: Verb, session: ISession, open: readonly string[]): Choice[] | null {
  switch (verb) {
    case 'keep':
      return [...KEEP_S, 0].map(for_s => ({ for_s }));
    case 'tier':
      return otherTiers(session, open).map(tier => ({ tier }));
    case 'resize':
      return otherSizes(session).map(devices => ({ devices }));
    default:
      return null;
  }
}
