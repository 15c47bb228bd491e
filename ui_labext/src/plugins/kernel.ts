import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';

import { kernelStatus } from '../model/sessions/kernel';
import { waitForOwnKernel } from '../model/sessions/starting';
import { INotebooks, Notebooks } from '../notebooks';
import { ISingularity } from '../tokens';

/** What JupyterLab's signals are besides what their interface says. */
interface IEmitter {
  emit(status: string): void;
}

/** The kernel of a notebook: that it keeps its own, and its status as JupyterLab words it. */
export const kernelPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-singularity:kernel',
  description:
    'Lets cells wait for the kernel of their notebook; keeps its status from saying "unknown" of a session that is parked or stored.',
  autoStart: true,
  requires: [ISingularity, INotebooks, INotebookTracker],
  activate: (
    _: JupyterFrontEnd,
    { feed }: ISingularity,
    notebooks: Notebooks,
    tracker: INotebookTracker
  ): void => {
    const attend = (panel: NotebookPanel) => {
      waitForOwnKernel(panel.sessionContext);
      const followed = notebooks.of(panel);
      const context = panel.sessionContext;
      const own = inherited(context, 'kernelDisplayStatus');
      if (!own) {
        return; // a JupyterLab that words it elsewhere: its own words stay
      }
      // All that shows a status asks for this one: toolbar, status bar, Notebook's header.
      const status = () =>
        kernelStatus(String(own.call(context)), followed.session, feed.link.state === 'live');
      Object.defineProperty(context, 'kernelDisplayStatus', { configurable: true, get: status });
      let shown = status();
      const look = () => {
        if (status() !== shown && !context.isDisposed) {
          shown = status();
          // They look when the connection tells of a change, and it has not changed.
          (context.connectionStatusChanged as unknown as IEmitter).emit(shown);
        }
      };
      context.statusChanged.connect(() => (shown = status()));
      context.connectionStatusChanged.connect(() => (shown = status()));
      const stops = [followed.follow(look), feed.subscribe(look)];
      panel.disposed.connect(() => stops.forEach(stop => stop()));
    };
    tracker.widgetAdded.connect((__, panel) => attend(panel));
  }
};

/** The getter that an object has from its class. */
function inherited(object: object, name: string): (() => unknown) | undefined {
  for (let place = object; place; place = Object.getPrototypeOf(place)) {
    const found = Object.getOwnPropertyDescriptor(place, name);
    if (found) {
      return found.get;
    }
  }
  return undefined;
}
