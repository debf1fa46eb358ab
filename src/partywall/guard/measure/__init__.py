"""What of a guard touches the host: vifs are found, hooks attached, rates held, and all of it is removed."""
