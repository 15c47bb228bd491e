"""The dashboard: pages of the service for people, admins and users."""
