"""What the tests share: processes that are waited for, and the search for what a test left behind."""
