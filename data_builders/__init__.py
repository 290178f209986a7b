"""Builders that write the data sets the project trains and evaluates on."""
