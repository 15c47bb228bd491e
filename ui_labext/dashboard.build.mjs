// Bundles the script of the dashboard's pages (lib/dashboard, as `tsc` made it) into the service.
import path from 'node:path';
import { rspack } from '@rspack/core';

const place = path.resolve('../scheduler/singularity_scheduler/service/dashboard/static');
rspack(
  {
    mode: 'production',
    target: ['web', 'es2022'],
    entry: './lib/dashboard/index.js',
    output: { path: place, filename: 'dashboard.js' },
    devtool: false,
    performance: false
  },
  (error, stats) => {
    if (error || stats.hasErrors()) {
      console.error(error ?? stats.toString({ all: false, errors: true }));
      process.exit(1);
    }
  }
);
