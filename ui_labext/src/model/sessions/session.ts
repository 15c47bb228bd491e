/**
 * A session as the page uses it, read from the scheduler's JSON.
 *
 * Reading is tolerant on purpose: the server may be older or newer than the page. Only `id` and
 * `state` are needed; a key that is missing or of another type counts as unknown.
 */

import { IDeclared, readDeclared } from './declared';
import { count, countOrNull, counts, isObject, text, texts, time } from '../server/json';

/** Told after each change of what it listens to. */
export type Listener = () => void;

/** How far a transfer to or from the store is. */
export interface IProgress {
  bytesDone: number;
  bytesTotal: number;
  /** Bytes per second. */
  rate: number;
  /** Seconds left; null: nobody can say. */
  etaS: number | null;
}

/** A stored checkpoint of a session. */
export interface ICheckpoint {
  id: string;
  /** Given by a person; empty: none. */
  name: string;
  /** Milliseconds since 1970; null: unknown. */
  at: number | null;
  /** "process": everything; "device", "files": that alone. */
  level: string;
  /** What it would take unshared and uncompressed. */
  bytes: number;
  /** When it was seen to come back, in ms since 1970; null: it was not. */
  provedAt: number | null;
  /** Why it did not come back when that was tried; empty: it did, or nobody has tried. */
  unproved: string;
  /** What it was made for, a word of the API; empty: somebody asked for it. */
  cause: string;
}

/** With what the end of a session can be taken back. */
export interface IUndo {
  /** Id of a checkpoint. */
  checkpoint: string;
  /** Its name; empty: none. */
  name: string;
  /** Until when it is kept; null: as long as nobody deletes it. */
  until: number | null;
}

/** What a batch session runs. */
export interface IRun {
  notebook: string;
  command: string;
  /** Where the executed notebook is written; empty: there is none. */
  output: string;
}

/** Which part of a run on several nodes a session is. */
export interface IPart {
  /** From 0. */
  number: number;
  /** How many there are, one on each node. */
  parts: number;
}

/** What came back, and what did not, at a session's last return from the store. */
export interface ILoss {
  back: string[];
  lost: string[];
  rolledBack: boolean;
  at: number | null;
}

/** A change that comes by itself if nothing else happens. */
export interface IPlanned {
  /** "park", "suspend" or "end". */
  what: string;
  /** At the latest; null: as soon as it can be done. */
  at: number | null;
  /** The scheduler's rule. */
  rule: string;
  why: string;
}

/** Times are in milliseconds since 1970, null where unknown. */
export interface ISession extends IDeclared {
  id: string;
  user: string;
  kind: string;
  name: string;
  tier: string;
  /** The one word for people; may be one that this page does not know. */
  state: string;
  processState: string;
  deviceState: string;
  reason: string;
  node: string;
  /** The physical device behind each virtual one; the same one again where they share it. */
  devices: string[];
  /** What its code sees; never changes. */
  virtualDevices: number;
  /** The numbers of physical devices that it can go on with; empty: it cannot be resized. */
  sizes: number[];
  /** Place in the queue, 1 is served next; null: it does not wait. */
  place: number | null;
  createdAt: number | null;
  updatedAt: number | null;
  /** Its code runs. */
  busy: boolean;
  heldBack: boolean;
  /** The newest one. */
  checkpoint: ICheckpoint | null;
  /** How many are stored. */
  checkpoints: number;
  /** Of an ended session: with what its end can be taken back; null: it cannot be. */
  undo: IUndo | null;
  /** null: it is no batch run. */
  run: IRun | null;
  /** null: all of it runs on one node. */
  part: IPart | null;
  progress: IProgress | null;
  loss: ILoss | null;
  /** What comes next by itself; null: nothing that is known. */
  planned: IPlanned | null;
}

const ENDED = new Set(['completed', 'failed', 'cancelled']);

/** Whether the session is over; `undo` says whether that can be taken back. */
export function hasEnded(session: ISession): boolean {
  return ENDED.has(session.state);
}

/** A place in the queue; null: none. */
export function readPlace(value: unknown): number | null {
  return typeof value === 'number' && value >= 1 ? value : null;
}

/** The progress of a transfer; null: there is none. */
export function readProgress(value: unknown): IProgress | null {
  if (!isObject(value)) {
    return null;
  }
  return {
    bytesDone: count(value.bytes_done),
    bytesTotal: count(value.bytes_total),
    rate: count(value.rate),
    etaS: countOrNull(value.eta_s)
  };
}

export function readCheckpoint(value: unknown): ICheckpoint | null {
  if (!isObject(value)) {
    return null;
  }
  return {
    id: text(value.id),
    name: text(value.name),
    at: time(value.at),
    level: text(value.level),
    bytes: count(value.bytes),
    provedAt: time(value.proved_at),
    unproved: text(value.unproved),
    cause: text(value.cause)
  };
}

function readUndo(value: unknown): IUndo | null {
  if (!isObject(value) || !text(value.checkpoint)) {
    return null;
  }
  return {
    checkpoint: text(value.checkpoint),
    name: text(value.name),
    until: time(value.until)
  };
}

function readRun(value: unknown): IRun | null {
  if (!isObject(value)) {
    return null;
  }
  return {
    notebook: text(value.notebook),
    command: text(value.command),
    output: text(value.output)
  };
}

function readPart(value: unknown): IPart | null {
  if (!isObject(value) || count(value.parts) < 2) {
    return null;
  }
  return { number: count(value.number), parts: count(value.parts) };
}

function readLoss(value: unknown): ILoss | null {
  if (!isObject(value)) {
    return null;
  }
  return {
    back: texts(value.back),
    lost: texts(value.lost),
    rolledBack: value.rolled_back === true,
    at: time(value.at)
  };
}

/** What comes by itself; null: nothing that is known. */
export function readPlanned(value: unknown): IPlanned | null {
  if (!isObject(value) || !text(value.what)) {
    return null;
  }
  return {
    what: text(value.what),
    at: time(value.at),
    rule: text(value.rule),
    why: text(value.why)
  };
}

function readSizes(value: unknown): number[] {
  return isObject(value) ? [...new Set(counts(value.counts))].sort((a, b) => a - b) : [];
}

/** The physical devices that a session holds, each once. */
export function physicalDevices(session: ISession): string[] {
  return [...new Set(session.devices)];
}

/** The numbers of physical devices that a session can go on with, but the one that it has. */
export function otherSizes(session: ISession): number[] {
  const now = physicalDevices(session).length;
  return session.sizes.filter(size => size !== now);
}

/** A session from its JSON; null: it is nothing that this page can show. */
export function readSession(value: unknown): ISession | null {
  if (!isObject(value) || !text(value.id) || !text(value.state)) {
    return null;
  }
  return {
    id: text(value.id),
    user: text(value.user),
    kind: text(value.kind),
    name: text(value.name) || text(value.id),
    tier: text(value.tier),
    state: text(value.state),
    processState: text(value.process_state),
    deviceState: text(value.device_state),
    reason: text(value.reason),
    node: text(value.node),
    devices: texts(value.devices),
    virtualDevices: count(value.virtual_devices),
    sizes: readSizes(value.resizable),
    place: isObject(value.queue) ? readPlace(value.queue.place) : null,
    createdAt: time(value.created_at),
    updatedAt: time(value.updated_at),
    busy: value.busy === true,
    heldBack: value.held_back === true,
    checkpoint: readCheckpoint(value.last_checkpoint),
    checkpoints: count(value.checkpoints),
    undo: readUndo(value.undo_end),
    run: readRun(value.run),
    part: readPart(value.part),
    progress: readProgress(value.progress),
    loss: readLoss(value.loss),
    planned: readPlanned(value.planned),
    ...readDeclared(value)
  };
}
