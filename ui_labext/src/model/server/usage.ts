import { countOrNull, isObject, list, text } from './json';
import { ISession, Listener } from '../sessions/session';

/** So long is the past that is kept and drawn. */
export const PAST_MS = 5 * 60_000;

/** At most so many samples of a session are kept. */
export const MOST = 300;

/** What one device of a session does now; null: nobody has said. */
export interface IDeviceUse {
  /** Number of the virtual device: what user code calls cuda:N. */
  virtual: number;
  /** The physical device behind it. */
  device: string;
  name: string;
  memoryUsed: number | null;
  memoryTotal: number | null;
  /** 0 to 100. */
  utilisation: number | null;
}

/** All devices of a session together at a time. It stays so until the next sample. */
export interface ISample {
  /** In ms since 1970, by this browser's clock. */
  at: number;
  memoryUsed: number | null;
  memoryTotal: number | null;
  /** Mean of the devices. */
  utilisation: number | null;
}

function readDevice(value: unknown): IDeviceUse | null {
  if (!isObject(value) || !text(value.device)) {
    return null;
  }
  return {
    virtual: countOrNull(value.virtual_device) ?? 0,
    device: text(value.device),
    name: text(value.name),
    memoryUsed: countOrNull(value.memory_used_bytes),
    memoryTotal: countOrNull(value.memory_total_bytes),
    utilisation: countOrNull(value.utilisation_percent)
  };
}

function known(values: (number | null)[]): number[] {
  return values.filter(value => value !== null);
}

function sum(values: (number | null)[]): number | null {
  const found = known(values);
  return found.length ? found.reduce((a, b) => a + b, 0) : null;
}

/** The sample that a report is; devices that are shared by several virtual ones count once. */
export function sampleOf(devices: IDeviceUse[], at: number): ISample {
  const physical = [...new Map(devices.map(each => [each.device, each])).values()];
  const busy = physical.map(each => each.utilisation);
  const all = sum(busy);
  return {
    at,
    memoryUsed: sum(devices.map(each => each.memoryUsed)),
    memoryTotal: sum(physical.map(each => each.memoryTotal)),
    utilisation: all === null ? null : all / known(busy).length
  };
}

/** What the devices of the sessions do, kept by the events of the scheduler. */
export class Usage {
  /** Its devices as last reported; empty: nobody has, or it has none. */
  devices(session: string): readonly IDeviceUse[] {
    return this._reports.get(session)?.devices ?? [];
  }

  /** The last `PAST_MS`, oldest first. */
  samples(session: string): readonly ISample[] {
    return this._reports.get(session)?.samples ?? [];
  }

  /** A report: `{session, devices}`. Others are left alone. */
  take(data: unknown): void {
    const devices = list(data, 'devices', readDevice);
    const session = isObject(data) ? text(data.session) : '';
    if (!devices || !session) {
      return;
    }
    if (!devices.length) {
      this._reports.delete(session);
    } else {
      const now = Date.now();
      const samples = [...this.samples(session), sampleOf(devices, now)].slice(-MOST);
      // The last one before what is drawn says how that begins.
      const second = samples.findIndex(each => each.at > now - PAST_MS);
      this._reports.set(session, { devices, samples: samples.slice(Math.max(0, second - 1)) });
    }
    this._listeners.forEach(listener => listener());
  }

  /** Forget those that are not there any more. */
  keep(isThere: (session: string) => boolean): void {
    for (const session of this._reports.keys()) {
      if (!isThere(session)) {
        this._reports.delete(session);
      }
    }
  }

  /** Call `listener` after each report; returns how to stop that. */
  subscribe(listener: Listener): () => void {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  private readonly _reports = new Map<string, { devices: IDeviceUse[]; samples: ISample[] }>();
  private readonly _listeners = new Set<Listener>();
}

/** A session without a report is asked about again after this long at the earliest. */
export const AGAIN_MS = 60_000;

/** Asks for the first report of sessions that somebody looks at; events bring the next ones. */
export class FirstReports {
  constructor(
    private readonly _ask: (session: string) => Promise<unknown>,
    private readonly _usage: Usage
  ) {}

  look(session: ISession): void {
    const { id, devices } = session;
    const asked = this._asked.get(id) ?? -Infinity;
    if (!devices.length || this._usage.devices(id).length || Date.now() - asked < AGAIN_MS) {
      return;
    }
    this._asked.set(id, Date.now());
    // A scheduler that does not know this, or is away: nothing is drawn.
    this._ask(id).then(
      report => this._usage.take(report),
      () => undefined
    );
  }

  private readonly _asked = new Map<string, number>();
}
