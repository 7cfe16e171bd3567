"""Helpers that the tests share: processes with waits, and the search for a test's leftovers."""
