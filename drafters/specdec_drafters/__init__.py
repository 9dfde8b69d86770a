"""The drafters that ship with specdec; each file or folder is one drafter, registered under its name."""
