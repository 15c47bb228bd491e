import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { INotebookTracker } from '@jupyterlab/notebook';

import { INotebooks, Notebooks } from '../notebooks';
import { ISingularity } from '../tokens';

/** The session of each notebook, for the plugins that show something there. */
export const notebooksPlugin: JupyterFrontEndPlugin<Notebooks> = {
  id: 'jupyter-singularity:notebooks',
  description: 'Follows the session behind each open notebook.',
  autoStart: true,
  requires: [ISingularity, INotebookTracker],
  provides: INotebooks,
  activate: (_: JupyterFrontEnd, singularity: ISingularity, tracker: INotebookTracker): Notebooks =>
    new Notebooks(singularity, tracker)
};
