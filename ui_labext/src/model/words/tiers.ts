import { TIERS } from './verbs';

/** What is known about a user is asked again after this long, when somebody looks. */
export const TIERS_MS = 60_000;

/** Which tiers are open to the users whose sessions are here, as administrators have said. */
export class OpenTiers {
  constructor(private readonly _ask: (user: string) => Promise<readonly string[]>) {}

  /** As far as it is known; all while it is not: the server has the last word. */
  of(user: string): readonly string[] {
    return this._known.get(user) ?? TIERS;
  }

  /** The same, asked for when it is old; what was known stays when there is no answer. */
  async look(user: string): Promise<readonly string[]> {
    const asked = this._asked.get(user);
    if (asked && Date.now() - asked.at < TIERS_MS) {
      await asked.answer;
      return this.of(user);
    }
    const answer = this._ask(user).then(
      tiers => void this._known.set(user, tiers),
      () => undefined // a scheduler that does not say, or is away
    );
    this._asked.set(user, { at: Date.now(), answer });
    await answer;
    return this.of(user);
  }

  private readonly _known = new Map<string, readonly string[]>();
  private readonly _asked = new Map<string, { at: number; answer: Promise<void> }>();
}
