"""What runs a notebook or a command in a batch capsule."""
