"""What all commands have in common: options, output, tables, exit codes."""
