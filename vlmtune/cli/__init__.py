"""What each subcommand does; imported when it runs, so that `--help` stays instant."""
