import { LabIcon } from '@jupyterlab/ui-components';

/** Of the translator: where the strings of this extension are found. */
export const DOMAIN = 'jupyter_singularity';

/** Shows the sidebar; the panel adds it, others run it. */
export const PANEL_COMMAND = 'singularity:open-panel';

export const icon = new LabIcon({
  name: 'jupyter-singularity:icon',
  svgstr:
    '<svg xmlns="http://www.w3.org/2000/svg" width="16" viewBox="0 0 24 24">' +
    '<g class="jp-icon3" fill="#616161"><circle cx="12" cy="12" r="4"/>' +
    '<path d="M12 2a10 10 0 0 1 10 10h-2a8 8 0 0 0-8-8zM12 22A10 10 0 0 1 2 12h2a8 8 0 0 0 8 8z"/>' +
    '</g></svg>'
});
