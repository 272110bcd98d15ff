"""The ground floor: events and their identity, and everything that must be true of them in PostgreSQL."""
