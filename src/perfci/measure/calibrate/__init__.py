"""What this machine can show: trials of unchanged code, and what they promise later runs."""
