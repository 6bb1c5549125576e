"""The verbs: from a command line to the rooms below. One module each; the table is in cli.py."""
