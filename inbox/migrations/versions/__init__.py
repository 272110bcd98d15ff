"""One module for each revision, explicit DDL."""
