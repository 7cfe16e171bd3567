"""One running job on the launcher's side: its plan, its session, and later shells."""
