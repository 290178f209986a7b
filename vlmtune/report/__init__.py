"""Takes the results of runs, gives `report.json`, a Markdown table, CSV, LaTeX and one HTML page.

Compares runs item by item and lists what limits a number. Never loads a model or scores anything.
"""
