import { IProgress, ISession, IUndo, physicalDevices } from '../sessions/session';

/** The part of JupyterLab's `TranslationBundle` that is used here. */
export interface ITexts {
  __(text: string, ...args: unknown[]): string;
  _n(one: string, many: string, count: number, ...args: unknown[]): string;
}

/** What a state looks like: the name of an icon and of a colour. */
export interface ILook {
  icon: 'play' | 'ready' | 'clock' | 'pause' | 'store' | 'move' | 'done' | 'cross' | 'unknown';
  colour: 'good' | 'busy' | 'calm' | 'bad';
}

const LOOKS: Record<string, ILook> = {
  queued: { icon: 'clock', colour: 'busy' },
  starting: { icon: 'move', colour: 'busy' },
  ready: { icon: 'ready', colour: 'good' },
  waiting: { icon: 'clock', colour: 'busy' },
  attaching: { icon: 'move', colour: 'busy' },
  running: { icon: 'play', colour: 'good' },
  parking: { icon: 'pause', colour: 'busy' },
  parked: { icon: 'pause', colour: 'calm' },
  migrating: { icon: 'move', colour: 'busy' },
  resizing: { icon: 'move', colour: 'busy' },
  suspending: { icon: 'store', colour: 'busy' },
  suspended: { icon: 'store', colour: 'calm' },
  resuming: { icon: 'move', colour: 'busy' },
  completed: { icon: 'done', colour: 'calm' },
  failed: { icon: 'cross', colour: 'bad' },
  cancelled: { icon: 'cross', colour: 'calm' }
};

/** Icon and colour of a state; of one that this page does not know, too. */
export function look(state: string): ILook {
  return (Object.hasOwn(LOOKS, state) && LOOKS[state]) || { icon: 'unknown', colour: 'calm' };
}

/** The state as people read it; one that this page does not know is shown as it is. */
export function stateWord(state: string, texts: ITexts): string {
  const words: Record<string, () => string> = {
    queued: () => texts.__('queued'),
    starting: () => texts.__('starting'),
    ready: () => texts.__('ready'),
    waiting: () => texts.__('waiting'),
    attaching: () => texts.__('attaching'),
    running: () => texts.__('running'),
    parking: () => texts.__('parking'),
    parked: () => texts.__('parked'),
    migrating: () => texts.__('migrating'),
    resizing: () => texts.__('resizing'),
    suspending: () => texts.__('suspending'),
    suspended: () => texts.__('suspended'),
    resuming: () => texts.__('resuming'),
    completed: () => texts.__('completed'),
    failed: () => texts.__('failed'),
    cancelled: () => texts.__('cancelled')
  };
  return (Object.hasOwn(words, state) && words[state]?.()) || state;
}

/** Whether a notebook that is there runs a cell, which its state does not say; "": it does not
 * matter. */
export function activityText(session: ISession, texts: ITexts): string {
  if (session.kind !== 'interactive' || !['running', 'ready'].includes(session.state)) {
    return '';
  }
  return session.busy ? texts.__('busy') : texts.__('idle');
}

/** 1536 -> "1.5 KiB". */
export function bytes(count: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let value = count;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

/** Seconds in one unit, rounded: "40 s", "3 min", "2 h", "5 d". */
export function duration(seconds: number, texts: ITexts): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) {
    return texts.__('%1 s', s);
  }
  if (s < 90 * 60) {
    return texts.__('%1 min', Math.round(s / 60));
  }
  if (s < 36 * 3600) {
    return texts.__('%1 h', Math.round(s / 3600));
  }
  return texts.__('%1 d', Math.round(s / 86400));
}

/** How many physical devices, as a menu has it. */
export function sizeText(devices: number, texts: ITexts): string {
  return texts._n('on %1 physical device', 'on %1 physical devices', devices);
}

/** How long ago a time (ms since 1970) was at `now`. */
export function ageText(at: number | null, now: number, texts: ITexts): string {
  return at === null
    ? texts.__('age unknown')
    : texts.__('%1 ago', duration((now - at) / 1000, texts));
}

/** A time in ms since 1970 as this browser writes it: with the day, unless that is the day of
 * `now`. */
export function moment(at: number, now: number): string {
  const day = new Date(at).toDateString() === new Date(now).toDateString();
  const date = new Date(at).toLocaleDateString([], { month: 'short', day: 'numeric' });
  return day ? clock(at) : `${date} ${clock(at)}`;
}

/** How long it is still, counted in seconds: "in 1:05"; "now" when it is over. */
export function remaining(ms: number, texts: ITexts): string {
  const s = Math.ceil(ms / 1000);
  return s > 0
    ? texts.__('in %1', `${Math.floor(s / 60)}:${String(s % 60).padStart(2, '0')}`)
    : texts.__('now');
}

/** The hour and minute of a time in ms since 1970, as this browser writes them. */
export function clock(at: number): string {
  return new Date(at).toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
}

/** So many devices are named one by one. */
const NAMED = 3;

/** Names in a row, the last ones counted where there are many. */
function several(names: readonly string[], texts: ITexts): string {
  return names.length <= NAMED
    ? names.join(', ')
    : texts.__('%1 and %2 more', names.slice(0, NAMED - 1).join(', '), names.length - NAMED + 1);
}

/** "4 virtual on 1 physical (cpu:0)". */
function sharedText(virtual: number, physical: readonly string[], texts: ITexts): string {
  const { length } = physical;
  return texts.__('%1 virtual on %2 physical (%3)', virtual, length, several(physical, texts));
}

const WANTS = new Set(['queued', 'starting', 'waiting', 'attaching', 'resuming']);

/** The devices it holds, or how many it waits for. */
export function deviceText(session: ISession, texts: ITexts): string {
  const physical = physicalDevices(session);
  if (physical.length) {
    return session.virtualDevices > physical.length
      ? sharedText(session.virtualDevices, physical, texts)
      : physical.join(', ');
  }
  return WANTS.has(session.state) && session.virtualDevices
    ? texts._n('wants %1 device', 'wants %1 devices', session.virtualDevices)
    : texts.__('no device');
}

/** Which virtual devices are on which physical ones, or how many it waits for. */
export function placedText(session: ISession, texts: ITexts): string {
  const { devices, virtualDevices } = session;
  if (!devices.length || physicalDevices(session).length < virtualDevices) {
    return deviceText(session, texts);
  }
  return several(
    devices.map((device, number) => texts.__('cuda:%1 on %2', number, device)),
    texts
  );
}

/** "1.5 GiB of 8.0 GiB, 40 %": what its devices do; "": nobody has said. */
export function useText(
  use: { memoryUsed: number | null; memoryTotal: number | null; utilisation: number | null },
  texts: ITexts
): string {
  const { memoryUsed, memoryTotal, utilisation } = use;
  const memory =
    memoryUsed === null
      ? ''
      : memoryTotal
        ? texts.__('%1 of %2', bytes(memoryUsed), bytes(memoryTotal))
        : bytes(memoryUsed);
  const busy = utilisation === null ? '' : texts.__('%1 %% busy', Math.round(utilisation));
  return [memory, busy].filter(Boolean).join(', ');
}

/** How old the newest checkpoint is at `now` (ms), or that there is none. */
export function checkpointAge(session: ISession, now: number, texts: ITexts): string {
  const { checkpoint } = session;
  if (!checkpoint) {
    return texts.__('no checkpoint');
  }
  return checkpoint.at === null
    ? texts.__('checkpoint stored')
    : texts.__('checkpoint %1', ageText(checkpoint.at, now, texts));
}

/** Where the end of a session can be taken back to, and how old that is. */
function wayBack(session: ISession, undo: IUndo, now: number, texts: ITexts): string {
  const { checkpoint } = session;
  const back = undo.name
    ? texts.__('go back to "%1"', undo.name)
    : texts.__('go back to its checkpoint');
  return checkpoint?.id === undo.checkpoint && checkpoint.at !== null
    ? texts.__('%1, %2', back, ageText(checkpoint.at, now, texts))
    : back;
}

/** The same with its name: last, as it may be long. Of a session that has ended: the way back. */
export function checkpointText(session: ISession, now: number, texts: ITexts): string {
  if (session.undo) {
    return wayBack(session, session.undo, now, texts);
  }
  const age = checkpointAge(session, now, texts);
  const name = session.checkpoint?.name;
  return name ? texts.__('%1: "%2"', age, name) : age;
}

/** "1.0 GiB of 2.0 GiB, 2 s left, 512 MiB/s": what matters most is seen where room is short. */
export function progressText(progress: IProgress, texts: ITexts): string {
  const parts = [texts.__('%1 of %2', bytes(progress.bytesDone), bytes(progress.bytesTotal))];
  if (progress.etaS !== null) {
    parts.push(texts.__('%1 left', duration(progress.etaS, texts)));
  }
  if (progress.rate > 0) {
    parts.push(`${bytes(progress.rate)}/s`);
  }
  return parts.join(', ');
}
