"""Process images of a capsule, by CRIU."""
