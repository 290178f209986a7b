"""What a person takes away: report.json, a Markdown table, one HTML page."""
