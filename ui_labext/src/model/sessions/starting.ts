/** What is needed of JupyterLab's session context of a notebook. */
export interface IStarting {
  session: { kernel: unknown } | null;
  initialize(): Promise<boolean>;
  startKernel(): Promise<boolean>;
}

/** With what is its own, and not in its interface. */
interface IOwn extends IStarting {
  _startIfNecessary?: () => Promise<boolean>;
}

/**
 * Let a cell that is run while its notebook still looks for its kernel wait for that kernel:
 * JupyterLab 4.6 starts a second one meanwhile, and ends the first when it has found it.
 */
export function waitForOwnKernel(context: IStarting): void {
  const own: IOwn = context;
  const { _startIfNecessary: begin, startKernel: start } = own;
  if (!begin) {
    return; // a JupyterLab that does this elsewhere
  }
  let looking = false;
  own._startIfNecessary = () => {
    looking = true;
    try {
      return begin.call(own);
    } finally {
      looking = false;
    }
  };
  own.startKernel = async () => {
    if (!looking) {
      await own.initialize();
      if (own.session?.kernel) {
        return false;
      }
    }
    return start.call(own);
  };
}
