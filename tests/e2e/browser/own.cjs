// What in JupyterLab's page is of this extension.
'use strict';
module.exports =
  '.jp-Singularity-panel, .jp-Singularity-banner, .jp-Singularity-status, ' +
  '.jp-Singularity-button, .jp-mod-singularityWaits .jp-InputPrompt, .lm-Menu';
