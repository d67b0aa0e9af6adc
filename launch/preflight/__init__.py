"""Will this run start on this machine? One file for each check."""
