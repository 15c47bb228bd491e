import { countOrNull, isObject } from './json';
import { IPlanned, readPlanned } from '../sessions/session';

/** What the Jupyter server says of its kernels. */
export interface IPlans {
  /** By kernel id. */
  planned: Map<string, IPlanned>;
  /** When it is worth asking again, in seconds; null: when there is another kernel. */
  askAfterS: number | null;
}

/** The answer to `GET planned`; what it lacks counts as nothing planned. */
export function readPlans(answer: unknown): IPlans {
  const found = isObject(answer) && isObject(answer.planned) ? answer.planned : {};
  const pairs = Object.entries(found).flatMap(([kernel, value]) => {
    const plan = readPlanned(value);
    return plan ? [[kernel, plan] as const] : [];
  });
  const askAfterS = isObject(answer) ? countOrNull(answer.again_s) : null;
  return { planned: new Map(pairs), askAfterS };
}

/** The one of two plans that comes first; one without a time is due. */
export function first(one: IPlanned | null, other: IPlanned | null): IPlanned | null {
  return !other || (one && (one.at ?? 0) <= (other.at ?? 0)) ? one : other;
}

/** What those who stop servers and kernels are going to do, which the scheduler does not know. */
export class Plans {
  constructor(private readonly _ask: () => Promise<IPlans>) {}

  /** What is planned for a kernel, as far as it is known; asks when that is old. */
  of(kernel: string | null): IPlanned | null {
    if (!kernel) {
      return null;
    }
    if (!this._kernels.has(kernel) || Date.now() >= this._next) {
      this._kernels.add(kernel);
      void this._look();
    }
    return this._plans.get(kernel) ?? null;
  }

  private async _look(): Promise<void> {
    this._next = Date.now() + FAILED_MS; // nothing is asked while this is under way
    try {
      const { planned, askAfterS } = await this._ask();
      this._plans = planned;
      this._next = askAfterS === null ? Infinity : Date.now() + askAfterS * 1000;
    } catch {
      // What was known holds; it is asked again.
    }
  }

  private _plans = new Map<string, IPlanned>();
  private _next = Infinity;
  private readonly _kernels = new Set<string>();
}

/** After a failure it is asked again this much later. */
const FAILED_MS = 60_000;
