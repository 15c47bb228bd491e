// Written by tools/derive.py from the tables in `model`; change those, then run ./dev docs.

import { count, countOrNull, flag, numberOrNull, text, texts } from '../server/json';

/** Fields of a session that are shown as they are. */
export interface IDeclared {
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
  epoch: number;
  /** +1 each time it went on from an older state. */
  incarnation: number;
  /** Suspended, and it comes back as soon as a node has room. */
  calledBack: boolean;
  /** The session it began as a copy of. */
  forkedFrom: string;
  /** Of its run, which may make `max_retries` more than one; what it went on from is in `loss`, null: it began anew. */
  attempt: number;
  exitCode: number | null;
}

/** Reading is tolerant: a text that is missing is empty, a count 0. */
export function readDeclared(value: Record<string, unknown>): IDeclared {
  return {
    checkpointEveryS: countOrNull(value.checkpoint_every_s),
    checkpointEverySteps: countOrNull(value.checkpoint_every_steps),
    virtualCluster: text(value.virtual_cluster),
    priority: text(value.priority),
    locations: texts(value.locations),
    epoch: count(value.epoch),
    incarnation: count(value.incarnation),
    calledBack: flag(value.called_back),
    forkedFrom: text(value.forked_from),
    attempt: count(value.attempt),
    exitCode: numberOrNull(value.exit_code)
  };
}
