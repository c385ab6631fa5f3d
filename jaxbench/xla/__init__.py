"""The compiler: its cache and flags, and analysis of compiled programs."""
