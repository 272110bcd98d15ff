"""The schema's history, run by `tidegate.inbox.migrate`; a revision that was released is never changed."""
