"""The compiler: its cache and flags, what compiled programs do."""
