"""What each subcommand does.

In: the words of a command line. Out: what the command writes and prints. Never: an import of other
commands, so that `--help` stays instant.
"""
