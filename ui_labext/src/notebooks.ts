import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { Token } from '@lumino/coreutils';

import { Followed } from './model/sessions/followed';
import { ISingularity } from './tokens';

/** The kernel of a notebook; null: it has none. */
export function kernelOf(panel: NotebookPanel | null): string | null {
  return panel?.sessionContext.session?.kernel?.id ?? null;
}

const STARTS = new Set(['starting', 'restarting', 'autorestarting']);

/** The session of each open notebook. */
export class Notebooks {
  constructor(
    private readonly _singularity: ISingularity,
    tracker: INotebookTracker
  ) {
    tracker.widgetAdded.connect((_, panel) => this.of(panel));
  }

  /** The session of a notebook, followed until that is closed. */
  of(panel: NotebookPanel): Followed {
    const known = this._followed.get(panel);
    if (known) {
      return known;
    }
    const { sessions, behind } = this._singularity;
    const followed = new Followed(() => kernelOf(panel), sessions, behind);
    this._followed.set(panel, followed);
    let starts = true;
    panel.sessionContext.kernelChanged.connect(() => {
      starts = true;
      followed.look();
    });
    panel.sessionContext.statusChanged.connect((_, status) => {
      if (STARTS.has(status)) {
        starts = true;
      } else if (starts && (status === 'idle' || status === 'busy')) {
        starts = false;
        followed.started();
      }
    });
    panel.disposed.connect(() => followed.dispose());
    return followed;
  }

  private readonly _followed = new WeakMap<NotebookPanel, Followed>();
}

/** For the plugins that show something in a notebook. */
export const INotebooks = new Token<Notebooks>(
  'jupyter-singularity:INotebooks',
  'The session behind each open notebook.'
);
