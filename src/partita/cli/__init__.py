"""`partita ...`: one file a command."""
