"""What `submit` sends, made of a command line or a job file."""
