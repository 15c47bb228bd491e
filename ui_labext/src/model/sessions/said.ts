// Written by tools/derive.py from the tables in `model`; change those, then run ./dev docs.

import { countOrNull, text, texts } from '../server/json';

/** What was said of a session when it was made. */
export interface ISaid {
  /** Seconds between checkpoints made by themselves, as it was asked for; 0: none; null: as the service is configured. */
  checkpointEveryS: number | null;
  /** The same by optimizer steps. */
  checkpointEverySteps: number | null;
  /** Whose quota its devices count for. */
  virtualCluster: string;
  /** Orders sessions of one tier. */
  priority: string;
  /** Clusters and regions that it may be in; none: anywhere. */
  locations: string[];
}

/** Reading is tolerant: a text that is missing is empty. */
export function readSaid(value: Record<string, unknown>): ISaid {
  return {
    checkpointEveryS: countOrNull(value.checkpoint_every_s),
    checkpointEverySteps: countOrNull(value.checkpoint_every_steps),
    virtualCluster: text(value.virtual_cluster),
    priority: text(value.priority),
    locations: texts(value.locations)
  };
}
