"""Files that the processes of a capsule have open, at a checkpoint and after a return."""
