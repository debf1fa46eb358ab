"""The format of a scenario file, the paths of what it varies, and its description for editors."""
