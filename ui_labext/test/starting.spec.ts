import { IStarting, waitForOwnKernel } from '../src/model/sessions/starting';

/** As JupyterLab's: looks for the notebook's session, and starts a kernel when there is none. */
class Context implements IStarting {
  session: { kernel: unknown } | null = null;
  started = 0;
  found: (session: { kernel: unknown } | null) => void = () => undefined;
  private _begun: Promise<boolean> | null = null;

  initialize(): Promise<boolean> {
    return (this._begun ??= this._initialize());
  }

  async startKernel(): Promise<boolean> {
    this.started += 1;
    await Promise.resolve();
    this.session = { kernel: 'new' };
    return false;
  }

  private async _initialize(): Promise<boolean> {
    this.session = await new Promise(found => (this.found = found));
    return this._startIfNecessary();
  }

  private async _startIfNecessary(): Promise<boolean> {
    return this.session?.kernel ? false : this.startKernel();
  }
}

describe('a cell that is run while its notebook looks for its kernel', () => {
  it('waits for the kernel that is there, and starts none', async () => {
    const context = new Context();
    waitForOwnKernel(context);
    const opened = context.initialize();
    const runs = [context.startKernel(), context.startKernel()];
    context.found({ kernel: 'old' });
    expect(await Promise.all([opened, ...runs])).toEqual([false, false, false]);
    expect([context.session, context.started]).toEqual([{ kernel: 'old' }, 0]);
  });

  it('gets the one that the notebook starts when there is none', async () => {
    const context = new Context();
    waitForOwnKernel(context);
    const opened = context.initialize();
    const run = context.startKernel();
    context.found(null);
    expect(await Promise.all([opened, run])).toEqual([false, false]);
    expect([context.session, context.started]).toEqual([{ kernel: 'new' }, 1]);
  });

  it('starts one after the kernel was shut down', async () => {
    const context = new Context();
    waitForOwnKernel(context);
    const opened = context.initialize();
    context.found({ kernel: 'old' });
    await opened;
    context.session = null;
    expect(await context.startKernel()).toBe(false);
    expect([context.session, context.started]).toEqual([{ kernel: 'new' }, 1]);
  });

  it('is left to a JupyterLab that has no such step', async () => {
    const context = {
      session: null,
      initialize: async () => true,
      startKernel: async () => true
    };
    const own = context.startKernel;
    waitForOwnKernel(context);
    expect(context.startKernel).toBe(own);
  });
});
