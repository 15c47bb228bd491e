import { LabIcon } from '@jupyterlab/ui-components';

import { Verb } from '../model/words/verbs';

/** Of the translator: where the strings of this extension are found. */
export const DOMAIN = 'jupyter_singularity';

/** Shows the sidebar; the panel adds it, others run it. */
export const PANEL_COMMAND = 'singularity:open-panel';

/** Says why a session is in its state. */
export const WHY_COMMAND = 'singularity:why';

/** Opens the notebook that a run writes. */
export const OUTPUT_COMMAND = 'singularity:open-output';

/** The command that does something with a session. */
export function verbCommand(verb: Verb): string {
  return `singularity:${verb}`;
}

export const icon = new LabIcon({
  name: 'jupyter-singularity:icon',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<g class="jp-icon3" fill="#616161"><circle cx="12" cy="12" r="4"/>' +
    '<path d="M12 2a10 10 0 0 1 10 10h-2a8 8 0 0 0-8-8zM12 22A10 10 0 0 1 2 12h2a8 8 0 0 0 8 8z"/>' +
    '</g></svg>'
});
