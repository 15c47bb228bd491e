"""The unattended tour of the platform."""
