"""The rules that ship with specdec; each file is one rule, registered under its name."""
