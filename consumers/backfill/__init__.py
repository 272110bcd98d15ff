"""Events of a window that are handled again, beside the group and without touching it."""
