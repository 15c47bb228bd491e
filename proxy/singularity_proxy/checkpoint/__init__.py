"""What a session is saved as; so far the device state of each ring (`state`)."""
